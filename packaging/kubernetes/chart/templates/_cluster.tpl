{{- /* A container that talks to the API server, of a list: context, its name (cluster, or profile, which ends), the
component that it is beside. */ -}}
{{- define "gpushim.inCluster" -}}
{{- $top := index . 0 -}}
{{- $name := index . 1 -}}
{{- $follows := include "gpushim.followsLabel" $top -}}
{{- $feature := and (include "gpushim.nodeFeature" $top) (eq $name "cluster") (eq (index . 2) "device-plugin") -}}
{{- $claims := and ($top.Values.dra | default dict).enabled (eq $name "cluster") -}}
- name: {{ $name }}
  {{- include "gpushim.container" $top | nindent 2 }}
  command: [/usr/bin/gpushim-device-plugin]
  args:
  - --cluster
  {{- if eq $name "profile" }}
  - --once
  {{- end }}
  {{- if $follows }}
  - --profile-file=/run/gpushim-cluster/profile
  {{- end }}
  {{- if and $top.Values.migLayout (eq $name "cluster") }}
  - --mig-layout-file=/run/gpushim-cluster/mig-layout
  {{- end }}
  {{- if $claims }}
  - --socket={{ include "gpushim.halves" $top }}/cluster.sock
  {{- end }}
  {{- if $feature }}
  - --node-feature
  - --labels-file=/run/gpushim-labels/labels
  {{- end }}
  env:
  - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
  {{- if $feature }}
  # The pod owns the NodeFeature object, which goes with it.
  - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  - {name: POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
  {{- end }}
  - {name: NVIDIA_VISIBLE_DEVICES, value: void}
  securityContext:
    {{- include "gpushim.nobody" (list $top (include "gpushim.ownUser" $top)) | nindent 4 }}
  resources:
    {{- toYaml ($top.Values.resources | default dict) | nindent 4 }}
  volumeMounts:
  {{- include "gpushim.tokenMount" $top | nindent 2 }}
  {{- if include "gpushim.followsNode" $top }}
  - {name: cluster, mountPath: /run/gpushim-cluster}
  {{- end }}
  {{- if $claims }}
  # It connects to the socket there, which needs no right to write.
  - {name: halves, mountPath: {{ include "gpushim.halves" $top }}, readOnly: true}
  {{- end }}
  {{- if $feature }}
  - {name: labels, mountPath: /run/gpushim-labels, readOnly: true}
  {{- end }}
{{- end -}}

{{- define "gpushim.tokenMount" -}}
- {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end -}}

{{- define "gpushim.tokenVolume" -}}
- name: token
  projected:
    sources:
    - serviceAccountToken: {path: token}
    - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
    - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
{{- end -}}
