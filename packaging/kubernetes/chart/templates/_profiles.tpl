{{- /* The profile of nodes without the label, or "". */ -}}
{{- define "gpushim.defaultProfile" -}}
{{- $config := .Values.config | default dict -}}
{{- $map := $config.map | default dict -}}
{{- $found := $config.default -}}
{{- if and $found (not (hasKey $map $found)) -}}
  {{- fail (printf "config.default is %q, which config.map does not have; it has %s" $found
    (keys $map | sortAlpha | join ", " | default "nothing")) -}}
{{- end -}}
{{- $tried := list -}}
{{- range $config.fallbackStrategies -}}
  {{- if and (not $found) (not (has "empty" $tried)) -}}
    {{- if and (eq . "named") (hasKey $map "default") }}{{ $found = "default" }}{{ end -}}
    {{- if and (eq . "single") (eq (len $map) 1) }}{{ $found = keys $map | first }}{{ end -}}
  {{- end -}}
  {{- $tried = append $tried . -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{- /* The name of the ConfigMap of profiles, or "". */ -}}
{{- define "gpushim.configMap" -}}
{{- $config := .Values.config | default dict -}}
{{- if and $config.map $config.name -}}
  {{- fail (printf "config.map and config.name (%q) both say what the profiles are; write one of them" $config.name) -}}
{{- end -}}
{{- if and $config.name $config.default -}}
  {{- fail (printf "config.default is %q, but profiles are in the ConfigMap %q; write default: %s into its config.yaml"
    $config.default $config.name $config.default) -}}
{{- end -}}
{{- if $config.map }}{{ include "gpushim.fullname" . }}-profiles{{ else }}{{ $config.name }}{{ end -}}
{{- end -}}

{{- /* "true" if a label of the node can change anything. */ -}}
{{- define "gpushim.followsNode" -}}
{{- if or (include "gpushim.followsLabel" .) .Values.migLayout }}true{{ end -}}
{{- end -}}

{{- /* "true" if the node's label can choose a profile. */ -}}
{{- define "gpushim.followsLabel" -}}
{{- $config := .Values.config | default dict -}}
{{- if or $config.name (gt (len ($config.map | default dict)) 1) (and $config.map (not (include "gpushim.defaultProfile" .))) -}}
true
{{- end -}}
{{- end -}}

{{- /* "true" if labels become a NodeFeature object. */ -}}
{{- define "gpushim.nodeFeature" -}}
{{- if eq ((.Values.labels | default dict).publish | default "none") "node-feature" }}true{{ end -}}
{{- end -}}

{{- /* "true" if a container talks to the API server. */ -}}
{{- define "gpushim.cluster" -}}
{{- if or (include "gpushim.followsNode" .) (include "gpushim.nodeFeature" .) (.Values.dra | default dict).enabled }}true{{ end -}}
{{- end -}}

{{- define "gpushim.serviceAccount" -}}
{{- $account := .Values.serviceAccount | default dict -}}
{{- if not (or $account.create $account.name) -}}
  {{- fail "serviceAccount.create is false, and no name is there; write yours into serviceAccount.name" -}}
{{- end -}}
{{- $account.name | default (printf "%s-%s" (include "gpushim.fullname" .) (ternary "dra-driver" "device-plugin" (eq (toString (.Values.dra | default dict).enabled) "true"))) -}}
{{- end -}}
