{{- /* What a node's label is called that gpushim-node has installed gpushim on; its value is true. */ -}}
{{- define "gpushim.installedLabel" -}}gpushim/installed{{- end -}}

{{- /* "true" if gpushim-node labels nodes: where the API server can hold it to its own node, and to this label. */ -}}
{{- define "gpushim.labelsNodes" -}}
{{- $node := .Values.node | default dict -}}
{{- if and $node.label (or .Values.uninstall $node.enabled) (semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version) -}}
true
{{- end -}}
{{- end -}}

{{- /* The user of containers with a token: of nobody else on the node, whose processes gpushim-node's pod sees. */ -}}
{{- define "gpushim.ownUser" -}}61017{{- end -}}

{{- /* The container that does it, of a list: context, its name (label, or unlabel, which ends). */ -}}
{{- define "gpushim.label" -}}
{{- $top := index . 0 -}}
{{- $removes := eq (index . 1) "unlabel" -}}
- name: {{ index . 1 }}
  {{- include "gpushim.container" $top | nindent 2 }}
  command: [/usr/bin/gpushim-node]
  args:
  - label
  - --name={{ include "gpushim.installedLabel" $top }}
  {{- if $removes }}
  - --remove
  {{- else }}
  - --installed-file=/run/gpushim-installed/yes
  - --posted-file=/run/gpushim-posted/yes
  {{- end }}
  env:
  - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
  {{- if not $removes }}
  # Ready when the API server knows whether gpushim is installed. Until then it is probed, and not restarted for that.
  startupProbe:
    exec:
      command:
      - /usr/bin/python3
      - -ISc
      - import os, sys; os.path.exists('/run/gpushim-posted/yes') or sys.exit('the node has no label yet; see the log')
    periodSeconds: 1
    timeoutSeconds: 10
    failureThreshold: 2000000000
  {{- end }}
  securityContext:
    {{- include "gpushim.nobody" (list $top (include "gpushim.ownUser" $top)) | nindent 4 }}
  resources:
    {{- toYaml (($top.Values.node | default dict).resources | default dict) | nindent 4 }}
  volumeMounts:
  {{- include "gpushim.tokenMount" $top | nindent 2 }}
  {{- if not $removes }}
  - {name: installed, mountPath: /run/gpushim-installed, readOnly: true}
  - {name: posted, mountPath: /run/gpushim-posted}
  {{- end }}
{{- end -}}
