{{- /* Refuses values of NVIDIA's charts that are not here, and says what takes their place. */ -}}
{{- define "gpushim.foreign" -}}
{{- $ours := dict
  "allowDefaultNamespace" "leave it out: any namespace will do"
  "ccManager" "leave it out: gpushim has no manager of confidential computing"
  "daemonsets" "write tolerations, priorityClassName and updateStrategy at the top"
  "dcgm" "leave it out: the device plugin tells the metrics (podMonitor)"
  "dcgmExporter" "write podMonitor.enabled: the device plugin tells the metrics"
  "devicePlugin" "write plugin.enabled; the device plugin's settings are below settings"
  "driver" "leave it out: install the driver on the nodes, gpushim brings none"
  "gdrcopy" "write settings.gdrcopy"
  "gds" "write settings.gds"
  "gfd" "write labels.publish: file or node-feature"
  "hostPaths" "write root under [driver] into the nodes' /etc/gpushim/config.toml"
  "kataManager" "leave it out: gpushim has nothing for Kata Containers"
  "legacyDaemonsetAPI" "leave it out: DaemonSets are of apps/v1"
  "mig" "write settings.mig-strategy"
  "migManager" "leave it out: divide GPUs on the nodes, as with nvidia-smi mig; gpushim changes none"
  "nfd" "write nodeFeatureDiscovery: true for its label; install node-feature-discovery with its own chart"
  "node-feature-discovery" "write nodeFeatureDiscovery: true for its label; install it with its own chart"
  "nodeStatusExporter" "write podMonitor.enabled: the device plugin tells the metrics"
  "operator" "leave it out: there is no operator; runtimeClassName and node.engine are at the top and below node"
  "psa" "label the namespace pod-security.kubernetes.io/enforce=privileged"
  "sandboxDevicePlugin" "leave it out: gpushim has nothing for virtual machines"
  "sandboxWorkloads" "leave it out: gpushim has nothing for virtual machines"
  "securityContext" "write podSecurityContext; what the containers may is fixed"
  "selectorLabelsOverride" "write nameOverride, or podLabels for more labels"
  "toolkit" "write node: node.enabled, node.engine and node.setAsDefault take its place"
  "validator" "leave it out: gpushim doctor kubernetes checks a node"
  "vfioManager" "leave it out: gpushim has nothing for virtual machines"
  "vgpuDeviceManager" "leave it out: gpushim has nothing for vGPU hosts"
  "vgpuManager" "leave it out: gpushim has nothing for vGPU hosts" -}}
{{- if hasKey (.Values.cdi | default dict) "enabled" -}}
  {{- fail "cdi.enabled is a value of NVIDIA's charts and not of this one; write settings.device-list-strategy: [cdi-cri], and node.cdi for containerd 1.7" -}}
{{- end -}}
{{- range $name, $instead := $ours -}}
  {{- if hasKey $.Values $name -}}
    {{- fail (printf "%s is a value of NVIDIA's charts and not of this one; %s" $name $instead) -}}
  {{- end -}}
{{- end -}}
{{- end -}}
