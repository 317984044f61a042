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

{{- define "gpushim.placement" -}}
nodeSelector:
  {{- toYaml (merge dict (.Values.nodeSelector | default dict) (dict "kubernetes.io/os" "linux")) | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "gpushim.affinity" . | fromJson }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
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

{{- define "gpushim.kubeletDir" -}}
{{- .Values.kubeletDir | required "kubeletDir is empty; write where kubelet keeps its files, as in /var/lib/kubelet" -}}
{{- end -}}

{{- /* Of pods, as a JSON object: that of the values, and node-feature-discovery's labels in each of its terms. */ -}}
{{- define "gpushim.affinity" -}}
{{- $all := deepCopy (.Values.affinity | default dict) -}}
{{- if .Values.nodeFeatureDiscovery -}}
  {{- $required := "requiredDuringSchedulingIgnoredDuringExecution" -}}
  {{- $node := $all.nodeAffinity | default dict -}}
  {{- $given := (index $node $required | default dict).nodeSelectorTerms | default (list dict) -}}
  {{- $terms := list -}}
  {{- range $term := $given -}}
    {{- range $label := list "pci-0300_10de" "pci-0302_10de" "pci-10de" -}}
      {{- $one := dict "key" (printf "feature.node.kubernetes.io/%s.present" $label) "operator" "In" "values" (list "true") -}}
      {{- $words := append ($term.matchExpressions | default list) $one -}}
      {{- $terms = append $terms (merge (dict "matchExpressions" $words) $term) -}}
    {{- end -}}
  {{- end -}}
  {{- $_ := set $node $required (dict "nodeSelectorTerms" $terms) -}}
  {{- $_ = set $all "nodeAffinity" $node -}}
{{- end -}}
{{- toJson $all -}}
{{- end -}}
