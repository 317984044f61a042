{{- define "gpushim.fullname" -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- $whole := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- .Values.fullnameOverride | default $whole | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "gpushim.image" -}}
{{- $image := .Values.image | default dict -}}
{{- $place := $image.repository | required "image.repository is empty; write where the image is" -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $place $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $place ($image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- /* Of a list: context, component. */ -}}
{{- define "gpushim.selector" -}}
{{- $top := index . 0 -}}
app.kubernetes.io/name: {{ $top.Values.nameOverride | default $top.Chart.Name }}
app.kubernetes.io/instance: {{ $top.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- /* A selector of the pods that serve metrics. */ -}}
{{- define "gpushim.measured" -}}
matchLabels:
  app.kubernetes.io/name: {{ .Values.nameOverride | default .Chart.Name }}
  app.kubernetes.io/instance: {{ .Release.Name }}
matchExpressions:
- {key: app.kubernetes.io/component, operator: In, values: [device-plugin, dra-driver]}
{{- end -}}

{{- define "gpushim.labels" -}}
{{- $top := index . 0 -}}
{{ include "gpushim.selector" . }}
app.kubernetes.io/version: {{ $top.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $top.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $top.Chart.Name $top.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "gpushim.metadata" -}}
{{- $top := index . 0 -}}
name: {{ include "gpushim.fullname" $top }}-{{ index . 1 }}
namespace: {{ $top.Release.Namespace }}
labels:
  {{- include "gpushim.labels" . | nindent 2 }}
{{- end -}}

{{- /* What pods of every DaemonSet have. */ -}}
{{- define "gpushim.podMetadata" -}}
{{- $top := index . 0 -}}
labels:
  {{- include "gpushim.labels" . | nindent 2 }}
  {{- with $top.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $top.Values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* Of a list: context, component. */ -}}
{{- define "gpushim.placement" -}}
{{- $top := index . 0 -}}
nodeSelector:
  {{- toYaml (merge dict ($top.Values.nodeSelector | default dict) (dict "kubernetes.io/os" "linux")) | nindent 2 }}
{{- with $top.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "gpushim.affinity" . | fromJson }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $top.Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $top.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{- define "gpushim.container" -}}
image: {{ include "gpushim.image" . }}
{{- with (.Values.image | default dict).pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end -}}

{{- /* What nothing but the plugin's own containers say of themselves. */ -}}
{{- define "gpushim.unprivileged" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
readOnlyRootFilesystem: true
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- /* Of a list: context, user. */ -}}
{{- define "gpushim.nobody" -}}
{{ include "gpushim.unprivileged" (index . 0) }}
runAsNonRoot: true
runAsUser: {{ index . 1 }}
runAsGroup: {{ index . 1 }}
{{- end -}}

{{- /* "true" if nodes have the device plugin; values that --reuse-values takes from an older chart do not say. */ -}}
{{- define "gpushim.hasPlugin" -}}
{{- if ne (toString (.Values.plugin | default dict).enabled) "false" }}true{{ end -}}
{{- end -}}

{{- define "gpushim.kubeletDir" -}}
{{- .Values.kubeletDir | required "kubeletDir is empty; write where kubelet keeps its files, as in /var/lib/kubelet" -}}
{{- end -}}

{{- /* Where kubelet registers device plugins: a constant of its own, whatever its directory; a snap's has it there. */ -}}
{{- define "gpushim.devicePlugins" -}}
{{- $dir := include "gpushim.kubeletDir" . -}}
{{ ternary $dir "/var/lib/kubelet" (hasPrefix "/var/snap/" $dir) }}/device-plugins
{{- end -}}

{{- /* Of a list: context, component. As a JSON object: that of the values, and in each of its terms the labels of
node-feature-discovery, for those that give out GPUs that of gpushim-node, and where both ways are there that the device plugin goes
without nodes which an administrator has labelled so, and claims alone are for these. */ -}}
{{- define "gpushim.affinity" -}}
{{- $top := index . 0 -}}
{{- $all := deepCopy ($top.Values.affinity | default dict) -}}
{{- $required := "requiredDuringSchedulingIgnoredDuringExecution" -}}
{{- $node := $all.nodeAffinity | default dict -}}
{{- $terms := (index $node $required | default dict).nodeSelectorTerms | default (list dict) -}}
{{- $ways := list -}}
{{- if $top.Values.nodeFeatureDiscovery -}}
  {{- $ways = append $ways (list "feature.node.kubernetes.io/pci-0300_10de.present"
    "feature.node.kubernetes.io/pci-0302_10de.present" "feature.node.kubernetes.io/pci-10de.present") -}}
{{- end -}}
{{- if and (has (index . 1) (list "device-plugin" "dra-driver")) (include "gpushim.labelsNodes" $top) -}}
  {{- $ways = append $ways (list (include "gpushim.installedLabel" $top)) -}}
{{- end -}}
{{- $operator := dict -}}
{{- if and (has (index . 1) (list "device-plugin" "dra-driver")) (include "gpushim.hasPlugin" $top) ($top.Values.dra | default dict).enabled -}}
  {{- $ways = append $ways (list "gpushim/by-claims") -}}
  {{- $operator = dict "gpushim/by-claims" (ternary "NotIn" "In" (eq (index . 1) "device-plugin")) -}}
{{- end -}}
{{- range $keys := $ways -}}
  {{- $before := $terms -}}
  {{- $terms = list -}}
  {{- range $term := $before -}}
    {{- range $key := $keys -}}
      {{- $one := dict "key" $key "operator" (get $operator $key | default "In") "values" (list "true") -}}
      {{- $words := append ($term.matchExpressions | default list) $one -}}
      {{- $terms = append $terms (merge (dict "matchExpressions" $words) $term) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if $ways -}}
  {{- $_ := set $node $required (dict "nodeSelectorTerms" $terms) -}}
  {{- $_ = set $all "nodeAffinity" $node -}}
{{- end -}}
{{- toJson $all -}}
{{- end -}}

{{- /* The node's cgroups, which say whether a process of a pod is left that kubelet has forgotten. */ -}}
{{- define "gpushim.cgroupsMount" -}}
# With cgroup v1 each controller is a mount below it.
- {name: cgroups, mountPath: /host/sys/fs/cgroup, readOnly: true{{ if semverCompare ">=1.31-0" .Capabilities.KubeVersion.Version }}, recursiveReadOnly: IfPossible{{ end }}}
{{- end -}}

{{- define "gpushim.cgroupsVolume" -}}
- name: cgroups
  hostPath: {path: /sys/fs/cgroup, type: Directory}
{{- end -}}
