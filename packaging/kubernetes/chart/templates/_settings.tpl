{{- /* The settings that values say, as a JSON object: key of [device-plugin] -> text. */ -}}
{{- define "gpushim.settings" -}}
{{- $names := dict "migStrategy" "mig-strategy" "failOnInitError" "fail-on-init-error" "deviceListStrategy"
  "device-list-strategy" "deviceIDStrategy" "device-id-strategy" "compatWithCPUManager" "pass-device-specs"
  "gdsEnabled" "gds" "mofedEnabled" "mofed" "gdrcopyEnabled" "gdrcopy" -}}
{{- $found := dict -}}
{{- range $key, $value := .Values.settings | default dict -}}
  {{- if not (kindIs "invalid" $value) }}{{ $_ := set $found $key $value }}{{ end -}}
{{- end -}}
{{- range $name, $key := $names -}}
  {{- $value := index $.Values $name -}}
  {{- if not (kindIs "invalid" $value) -}}
    {{- if hasKey $found $key -}}
      {{- fail (printf "%s and settings.%s are one setting; write one of them" $name $key) -}}
    {{- end -}}
    {{- $_ := set $found $key $value -}}
  {{- end -}}
{{- end -}}
{{- if not (hasKey $found "fail-on-init-error") }}{{ $_ := set $found "fail-on-init-error" false }}{{ end -}}
{{- $said := dict -}}
{{- range $key, $value := $found -}}
  {{- $_ := set $said $key (ternary (join "," $value) (toString $value) (kindIs "slice" $value)) -}}
{{- end -}}
{{- toJson $said -}}
{{- end -}}

{{- /* The plugin's arguments, a YAML list. */ -}}
{{- define "gpushim.flags" -}}
{{- $flags := dict "gds" "gds-enabled" "mofed" "mofed-enabled" "gdrcopy" "gdrcopy-enabled" "imex-channels"
  "imex-channel-ids" "allocation-policy" "shared-devices-allocation-policy" -}}
- --kubelet-dir={{ include "gpushim.kubeletDir" . }}
{{- range $key, $text := include "gpushim.settings" . | fromJson }}
{{- if $text }}
- {{ printf "--%s=%s" (get $flags $key | default $key) $text | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* The port of the pod's own address at which metrics are; "" if there is none. */ -}}
{{- define "gpushim.port" -}}
{{- $address := (.Values.settings | default dict).metrics | default "" -}}
{{- if not (regexMatch "^(unix:|127\\.|localhost:|\\[::1\\]:)" $address) }}{{ regexFind "[0-9]+$" $address }}{{ end -}}
{{- end -}}

{{- /* Of a port: how a container is asked for metrics, and whether it is well. */ -}}
{{- define "gpushim.probes" -}}
{{- if . -}}
ports:
- {name: metrics, containerPort: {{ . }}}
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 20
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end -}}
{{- end -}}

{{- /* The volume with the token that metrics are read with. */ -}}
{{- define "gpushim.metricsToken" -}}
{{- $token := .Values.metricsToken | default dict -}}
{{- if $token.secret -}}
- name: metrics-token
  secret:
    secretName: {{ $token.secret | quote }}
    items: [{key: {{ $token.key | default "token" | quote }}, path: token}]
    defaultMode: 0400
{{- end -}}
{{- end -}}

{{- /* Refuses values that contradict each other or mean nothing here. */ -}}
{{- define "gpushim.check" -}}
{{- $elsewhere := list
  (list "deviceDiscoveryStrategy" .Values.deviceDiscoveryStrategy "auto" "gpushim refresh finds out what a node has; omit it")
  (list "mps.root" (.Values.mps | default dict).root "/run/nvidia/mps" "MPS's pipes are in /run/gpushim/mps; omit it")
  (list "cdi.nvidiaHookPath" (.Values.cdi | default dict).nvidiaHookPath "/usr/bin/nvidia-cdi-hook"
    "CDI specs name gpushim-hook; omit it") -}}
{{- range $row := $elsewhere -}}
  {{- if and (index $row 1) (ne (index $row 1) (index $row 2)) -}}
    {{- fail (printf "%s is %q, which is not decided here: %s" (index $row 0) (index $row 1) (index $row 3)) -}}
  {{- end -}}
{{- end -}}
{{- if and .Values.nvidiaDriverRoot (ne .Values.nvidiaDriverRoot "/") (not (.Values.node | default dict).enabled) -}}
  {{- fail (printf "nvidiaDriverRoot is %q, and node.enabled is false: write root under [driver] into the nodes' /etc/gpushim/config.toml" .Values.nvidiaDriverRoot) -}}
{{- end -}}
{{- include "gpushim.foreign" . -}}
{{- if not (or .Values.uninstall (include "gpushim.hasPlugin" .) (.Values.dra | default dict).enabled) -}}
  {{- fail "plugin.enabled is false and dra.enabled, too, so nothing would give out GPUs; write true to one of them" -}}
{{- end -}}
{{- $node := .Values.node | default dict -}}
{{- if and $node.enabled (not .Values.uninstall) (not $node.setAsDefault) (not .Values.runtimeClassName) -}}
  {{- fail "runtimeClassName is empty, so the device plugin would get no GPU; write nvidia there, or node.setAsDefault: true" -}}
{{- end -}}
{{- $_ := include "gpushim.configMap" . -}}
{{- $_ = include "gpushim.defaultProfile" . -}}
{{- $port := include "gpushim.port" . -}}
{{- range $name := list "podMonitor" "prometheusRule" "networkPolicy" "metricsToken" -}}
  {{- $key := ternary "secret" "enabled" (eq $name "metricsToken") -}}
  {{- if and (index $.Values $name | default dict | dig $key "") (not $port) -}}
    {{- fail (printf "%s.%s needs a port that Prometheus reaches, and settings.metrics is %q; write %q there" $name $key
      (($.Values.settings | default dict).metrics | default "") ":9400") -}}
  {{- end -}}
{{- end -}}
{{- end -}}
