{{- /* Refuses values of NVIDIA's charts that are not here, and says what takes their place. */ -}}
{{- define "gpushim.foreign" -}}
{{- $ours := dict
  "allowDefaultNamespace" "leave it out: any namespace will do"
  "altProcDevices" "leave it out: claims bring no IMEX channels"
  "ccManager" "leave it out: gpushim has no manager of confidential computing"
  "consumableShares" "leave it out: claims do not share devices"
  "controller" "leave it out: there is no controller, for claims bring no ComputeDomains"
  "daemonsets" "write tolerations, priorityClassName and updateStrategy at the top"
  "dcgm" "leave it out: the device plugin tells the metrics (podMonitor)"
  "dcgmExporter" "write podMonitor.enabled: the device plugin tells the metrics"
  "devicePlugin" "write plugin.enabled; the device plugin's settings are below settings"
  "driver" "leave it out: install the driver on the nodes, gpushim brings none"
  "featureGates" "leave it out: what gpushim has of these features is on"
  "gdrcopy" "write settings.gdrcopy"
  "gds" "write settings.gds"
  "gfd" "write labels.publish: file or node-feature"
  "gpuResourcesEnabledOverride" "write dra.enabled"
  "hostPaths" "write nvidiaDriverRoot"
  "kataManager" "leave it out: gpushim has nothing for Kata Containers"
  "kubeletPlugin" "write kubeletDir, tolerations, affinity, priorityClassName and updateStrategy at the top"
  "legacyDaemonsetAPI" "leave it out: DaemonSets are of apps/v1"
  "logVerbosity" "write level under [log] into the nodes' /etc/gpushim/config.toml"
  "mig" "write settings.mig-strategy"
  "migManager" "write migLayout: true, and its layouts into /etc/gpushim/mig.yaml on the nodes"
  "namespaceOverride" "leave it out: all objects are in the release's namespace"
  "nfd" "write nodeFeatureDiscovery: true for its label; install node-feature-discovery with its own chart"
  "node-feature-discovery" "write nodeFeatureDiscovery: true for its label; install it with its own chart"
  "nodeStatusExporter" "write podMonitor.enabled: the device plugin tells the metrics"
  "nvidiaCDIHookPath" "leave it out: CDI specs name gpushim-hook"
  "operator" "leave it out: there is no operator; runtimeClassName and node.engine are at the top and below node"
  "psa" "label the namespace pod-security.kubernetes.io/enforce=privileged"
  "resourceApiVersion" "leave it out: it is resource.k8s.io/v1"
  "sandboxDevicePlugin" "leave it out: gpushim has nothing for virtual machines"
  "sandboxWorkloads" "leave it out: gpushim has nothing for virtual machines"
  "securityContext" "write podSecurityContext; what the containers may is fixed"
  "selectorLabelsOverride" "write nameOverride, or podLabels for more labels"
  "toolkit" "write node: node.enabled, node.engine and node.setAsDefault take its place"
  "validator" "leave it out: gpushim doctor kubernetes checks a node"
  "vfioManager" "leave it out: gpushim has nothing for virtual machines"
  "vgpuDeviceManager" "leave it out: gpushim has nothing for vGPU hosts"
  "vgpuManager" "leave it out: gpushim has nothing for vGPU hosts"
  "webhook" "leave it out: configs are checked when a claim is prepared" -}}
{{- if hasKey (.Values.cdi | default dict) "enabled" -}}
  {{- fail "cdi.enabled is a value of NVIDIA's charts and not of this one; write settings.device-list-strategy: [cdi-cri], and node.cdi for containerd 1.7" -}}
{{- end -}}
{{- range $name := list "gpus" "computeDomains" -}}
  {{- if hasKey ($.Values.resources | default dict) $name -}}
    {{- fail (printf "resources.%s is a value of NVIDIA's charts and not of this one; %s" $name
      (ternary "write dra.enabled" "leave it out: claims bring no ComputeDomains" (eq $name "gpus"))) -}}
  {{- end -}}
{{- end -}}
{{- range $name, $instead := $ours -}}
  {{- if hasKey $.Values $name -}}
    {{- fail (printf "%s is a value of NVIDIA's charts and not of this one; %s" $name $instead) -}}
  {{- end -}}
{{- end -}}
{{- end -}}
