/* What the driver's kernel module has below /proc/driver/nvidia, for a machine without one.
 *
 * In /proc itself, so that a container's own /proc has it, too, and what gpushim puts over it can be seen. Its parameter
 * `gpus` has the PCI addresses of the GPUs.
 */
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>

#define MOST 8

static char *gpus[MOST];
static int count;
module_param_array(gpus, charp, &count, 0444);

static struct proc_dir_entry *top;

static int show_params(struct seq_file *file, void *unused)
{
	seq_puts(file, "EnableMSI: 1\nModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n");
	return 0;
}

static int show_version(struct seq_file *file, void *unused)
{
	seq_puts(file, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01\n");
	return 0;
}

static int show_information(struct seq_file *file, void *unused)
{
	seq_puts(file, "Model: simulated\n");
	return 0;
}

static int __init begin(void)
{
	struct proc_dir_entry *each;
	int number;

	top = proc_mkdir("driver/nvidia", NULL);
	if (!top)
		return -ENOMEM;
	proc_create_single("params", 0444, top, show_params);
	proc_create_single("version", 0444, top, show_version);
	proc_mkdir("capabilities", top);
	each = proc_mkdir("gpus", top);
	for (number = 0; each && number < count; number++)
		proc_create_single("information", 0444, proc_mkdir(gpus[number], each), show_information);
	return 0;
}

static void __exit end(void)
{
	proc_remove(top);
}

module_init(begin);
module_exit(end);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("a simulated driver's files in /proc");
