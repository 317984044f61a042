{{- /* The DaemonSet of the agent, of a list: context, component: device-plugin, or dra-driver, by claims alone. */ -}}
{{- define "gpushim.agent" -}}
{{- $top := index . 0 }}
{{- $component := index . 1 }}
{{- $plugin := eq $component "device-plugin" }}
{{- $claims := ($top.Values.dra | default dict).enabled }}
{{- $values := $top.Values }}
{{- $labels := ternary ($values.labels | default dict) dict $plugin }}
{{- $configMap := include "gpushim.configMap" $top }}
{{- $follows := include "gpushim.followsLabel" $top }}
{{- $feature := and $plugin (include "gpushim.nodeFeature" $top) }}
{{- $node := include "gpushim.followsNode" $top }}
{{- $cluster := or $claims $node $feature }}
{{- $token := $values.metricsToken | default dict }}
apiVersion: apps/v1
kind: DaemonSet
metadata:
  {{- include "gpushim.metadata" (list $top $component) | nindent 2 }}
spec:
  selector:
    matchLabels:
      {{- include "gpushim.selector" (list $top $component) | nindent 6 }}
  {{- with $values.updateStrategy }}
  updateStrategy:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  template:
    metadata:
      {{- include "gpushim.podMetadata" (list $top $component) | nindent 6 }}
    spec:
      {{- include "gpushim.placement" (list $top $component) | nindent 6 }}
      {{- with $values.runtimeClassName }}
      runtimeClassName: {{ . }}
      {{- end }}
      # Always said: its alias serviceAccount, which the API server fills in, would keep an account that has gone.
      serviceAccountName: {{ if $cluster }}{{ include "gpushim.serviceAccount" $top }}{{ else }}default{{ end }}
      automountServiceAccountToken: false
      {{- with $values.podSecurityContext }}
      securityContext:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      terminationGracePeriodSeconds: 15
      {{- if $follows }}
      initContainers:
      # So that the first list is already that of the node's profile.
      {{- include "gpushim.inCluster" (list $top "profile" $component) | nindent 6 }}
      {{- end }}
      containers:
      - name: {{ ternary "device-plugin" "node" $plugin }}
        {{- include "gpushim.container" $top | nindent 8 }}
        command: [/usr/bin/gpushim-device-plugin]
        args:
        {{- include "gpushim.flags" $top | nindent 8 }}
        {{- if $claims }}
        - --fronts={{ ternary "device-plugin,dra" "dra" $plugin }}
        - --socket={{ include "gpushim.halves" $top }}/cluster.sock
        - --cluster-user={{ include "gpushim.ownUser" $top }}
        # The node's config.toml may name one for packages.
        - --kubeconfig=
        {{- with $values.dra.taintEffect }}
        - --taint-effect={{ . }}
        {{- end }}
        {{- end }}
        {{- if $configMap }}
        - --config-file=/profiles/config.yaml
        {{- end }}
        {{- if $follows }}
        - --profile-file=/run/gpushim-cluster/profile
        {{- end }}
        {{- if $values.migLayout }}
        - --mig-layout-file=/run/gpushim-cluster/mig-layout
        {{- end }}
        {{- if eq ($labels.publish | default "none") "file" }}
        - --labels-file=/features.d/gpushim
        {{- else if $feature }}
        - --labels-file=/run/gpushim-labels/labels
        {{- end }}
        {{- if not (kindIs "invalid" $labels.interval) }}
        - --labels-interval={{ int64 $labels.interval }}
        {{- end }}
        {{- if not (kindIs "invalid" $labels.noTimestamp) }}
        - --labels-no-timestamp={{ $labels.noTimestamp }}
        {{- end }}
        {{- if $token.secret }}
        - --metrics-token-file=/run/gpushim-metrics/token
        {{- end }}
        env:
        - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
        - {name: NVIDIA_DRIVER_CAPABILITIES, value: utility}
        - {name: NVIDIA_VISIBLE_DEVICES, value: {{ ternary "/var/run/nvidia-container-devices" "all-usable" (eq ($values.visibleDevices | default "envvar") "volume-mounts") }}}
        {{- with $values.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- with include "gpushim.probes" (include "gpushim.port" $top) }}
        {{- . | nindent 8 }}
        {{- end }}
        securityContext:
          {{- include "gpushim.unprivileged" $top | nindent 10 }}
          # kubelet's directories are root's, mode 0750.
          runAsUser: 0
        resources:
          {{- toYaml ($values.resources | default dict) | nindent 10 }}
        volumeMounts:
        {{- /* kubelet's checkpoint there has what pods got by the device plugin, which claims heed, too. */}}
        - {name: device-plugins, mountPath: {{ include "gpushim.devicePlugins" $top }}{{ if not $plugin }}, readOnly: true{{ end }}}
        - {name: pod-resources, mountPath: {{ include "gpushim.kubeletDir" $top }}/pod-resources, readOnly: true}
        - {name: plugins-registry, mountPath: {{ include "gpushim.kubeletDir" $top }}/plugins_registry{{ if not $claims }}, readOnly: true{{ end }}}
        {{- if $claims }}
        - {name: plugins, mountPath: {{ include "gpushim.kubeletDir" $top }}/plugins}
        - {name: halves, mountPath: {{ include "gpushim.halves" $top }}}
        {{- end }}
        - {name: state, mountPath: /run/gpushim}
        - {name: book, mountPath: /var/lib/gpushim/device-plugin}
        - {name: settings, mountPath: /etc/gpushim, readOnly: true}
        - {name: cdi-etc, mountPath: /etc/cdi, readOnly: true}
        {{- /* Claims that share by MPS have a spec of their own there. */}}
        - {name: cdi-run, mountPath: /var/run/cdi{{ if not $claims }}, readOnly: true{{ end }}}
        {{- include "gpushim.cgroupsMount" $top | nindent 8 }}
        {{- if $token.secret }}
        - {name: metrics-token, mountPath: /run/gpushim-metrics, readOnly: true}
        {{- end }}
        {{- if $configMap }}
        - {name: profiles, mountPath: /profiles, readOnly: true}
        {{- end }}
        {{- if $node }}
        - {name: cluster, mountPath: /run/gpushim-cluster, readOnly: true}
        {{- end }}
        {{- if eq ($labels.publish | default "none") "file" }}
        - {name: features, mountPath: /features.d}
        {{- else if $feature }}
        - {name: labels, mountPath: /run/gpushim-labels}
        {{- end }}
        {{- if eq ($values.visibleDevices | default "envvar") "volume-mounts" }}
        - {name: all-devices, mountPath: /var/run/nvidia-container-devices/all-usable}
        {{- end }}
      {{- if $cluster }}
      {{- include "gpushim.inCluster" (list $top "cluster" $component) | nindent 6 }}
      {{- end }}
      volumes:
      - name: device-plugins
        hostPath: {path: {{ include "gpushim.devicePlugins" $top }}, type: Directory}
      - name: pod-resources
        hostPath: {path: {{ include "gpushim.kubeletDir" $top }}/pod-resources, type: Directory}
      - name: plugins-registry
        hostPath: {path: {{ include "gpushim.kubeletDir" $top }}/plugins_registry, type: DirectoryOrCreate}
      {{- if $claims }}
      - name: plugins
        hostPath: {path: {{ include "gpushim.kubeletDir" $top }}/plugins, type: DirectoryOrCreate}
      - name: halves
        emptyDir: {medium: Memory, sizeLimit: 1Mi}
      {{- end }}
      - name: state
        hostPath: {path: /run/gpushim, type: DirectoryOrCreate}
      - name: book
        hostPath: {path: /var/lib/gpushim/device-plugin, type: DirectoryOrCreate}
      - name: settings
        hostPath: {path: /etc/gpushim, type: Directory}
      - name: cdi-etc
        hostPath: {path: /etc/cdi, type: DirectoryOrCreate}
      - name: cdi-run
        hostPath: {path: /var/run/cdi, type: DirectoryOrCreate}
      {{- include "gpushim.cgroupsVolume" $top | nindent 6 }}
      {{- with include "gpushim.metricsToken" $top }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- if $configMap }}
      - name: profiles
        configMap:
          name: {{ $configMap }}
          items: [{key: config.yaml, path: config.yaml}]
      {{- end }}
      {{- if $node }}
      - name: cluster
        emptyDir: {medium: Memory, sizeLimit: 1Mi}
      {{- end }}
      {{- if $feature }}
      - name: labels
        emptyDir: {medium: Memory, sizeLimit: 1Mi}
      {{- end }}
      {{- if eq ($labels.publish | default "none") "file" }}
      - name: features
        hostPath: {path: {{ $labels.directory }}, type: DirectoryOrCreate}
      {{- end }}
      {{- if eq ($values.visibleDevices | default "envvar") "volume-mounts" }}
      - name: all-devices
        hostPath: {path: /dev/null, type: CharDevice}
      {{- end }}
      {{- if $cluster }}
      {{- include "gpushim.tokenVolume" $top | nindent 6 }}
      {{- end }}
{{- end -}}

{{- /* Where the halves of a pod meet. */ -}}
{{- define "gpushim.halves" -}}/run/gpushim-dra{{- end -}}
