/* A driver that keeps limits of GPU memory: regions of the controller dmem, named as NVIDIA's, and a device for each.
 *
 * Writing a number to /dev/gpu-memoryN takes that many bytes of the region, charged to the writer's cgroup, until the
 * file is closed. Its parameter `gpus` has the PCI addresses of the GPUs.
 */
#include <linux/cgroup_dmem.h>
#include <linux/fs.h>
#include <linux/init.h>
#include <linux/miscdevice.h>
#include <linux/moduleparam.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#define MOST 8
#define SIZE (1ULL << 30)

static char *gpus[MOST];
static int count;
module_param_array(gpus, charp, &count, 0444);

static struct dmem_cgroup_region *regions[MOST];
static struct miscdevice devices[MOST];

struct taken {
	struct dmem_cgroup_pool_state *pool;
	u64 size;
	struct taken *next;
};

static struct dmem_cgroup_region *region_of(struct file *file)
{
	int number;

	for (number = 0; number < count; number++)
		if (devices[number].minor == iminor(file_inode(file)))
			return regions[number];
	return NULL;
}

static int open_memory(struct inode *inode, struct file *file)
{
	file->private_data = NULL;
	return 0;
}

static ssize_t take(struct file *file, const char __user *buffer, size_t length, loff_t *offset)
{
	struct dmem_cgroup_pool_state *limit = NULL;
	struct taken *taken;
	u64 size;
	int error = kstrtou64_from_user(buffer, length, 0, &size);

	if (error)
		return error;
	taken = kzalloc(sizeof(*taken), GFP_KERNEL);
	if (!taken)
		return -ENOMEM;
	error = dmem_cgroup_try_charge(region_of(file), size, &taken->pool, &limit);
	if (error) {
		if (limit)
			dmem_cgroup_pool_state_put(limit);
		kfree(taken);
		return error == -EAGAIN ? -ENOMEM : error;
	}
	taken->size = size;
	taken->next = file->private_data;
	file->private_data = taken;
	return length;
}

static int close_memory(struct inode *inode, struct file *file)
{
	struct taken *taken = file->private_data;

	while (taken) {
		struct taken *next = taken->next;

		dmem_cgroup_uncharge(taken->pool, taken->size);
		kfree(taken);
		taken = next;
	}
	return 0;
}

static const struct file_operations operations = {
	.open = open_memory,
	.write = take,
	.release = close_memory,
};

static int __init begin(void)
{
	int number, error;

	for (number = 0; number < count; number++) {
		regions[number] = dmem_cgroup_register_region(SIZE, "nvidia/%s/vidmem", gpus[number]);
		if (IS_ERR_OR_NULL(regions[number]))
			return -ENOMEM;
		devices[number].minor = MISC_DYNAMIC_MINOR;
		devices[number].name = kasprintf(GFP_KERNEL, "gpu-memory%d", number);
		devices[number].fops = &operations;
		devices[number].mode = 0666;
		error = misc_register(&devices[number]);
		if (error)
			return error;
	}
	return 0;
}
device_initcall(begin);
