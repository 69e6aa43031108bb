{{- /* Settings of a pod. The argument is a list: the values, the user id, and optionally a map with
further nodeSelector and tolerations. */}}
{{- define "moothall.pod" -}}
{{- $values := index . 0 }}{{ $user := index . 1 }}{{ $placement := dict }}
{{- if gt (len .) 2 }}{{ $placement = index . 2 }}{{ end -}}
securityContext: {runAsUser: {{ $user }}, runAsGroup: {{ $user }}, fsGroup: {{ $user }}, fsGroupChangePolicy: OnRootMismatch, runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
{{- with merge dict ($placement.nodeSelector | default dict) $values.pods.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with concat $values.pods.tolerations ($placement.tolerations | default list) }}
tolerations: {{ toJson . }}
{{- end }}
{{- with $values.pods.imagePullSecrets }}
imagePullSecrets: [{{ range $index, $name := . }}{{ if $index }}, {{ end }}{name: {{ $name }}}{{ end }}]
{{- end }}
{{- end }}

{{- define "moothall.container" -}}
securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end }}

{{- define "moothall.claim" -}}
accessModes: [{{ .mode | default "ReadWriteOnce" }}]
{{- with .className }}
storageClassName: {{ . | quote }}
{{- end }}
resources: {requests: {storage: {{ .size }}}}
{{- end }}

{{- define "moothall.rayToken" -}}
- {name: RAY_AUTH_MODE, value: token}
- {name: RAY_AUTH_TOKEN, valueFrom: {secretKeyRef: {name: hosts, key: auth_token}}}
{{- end }}

{{- /* The pods that may connect to Neo4j and vLLM. */}}
{{- define "moothall.clients" -}}
- podSelector: {matchLabels: {app.kubernetes.io/name: moothall}}
{{- if .Values.hosts.enabled }}
- podSelector: {matchLabels: {ray.io/cluster: hosts}}
{{- end }}
{{- end }}

{{- /* A value as text. Helm reads numbers in files as floats, and would write large ones as 5e+10. */}}
{{- define "moothall.text" -}}
{{- if kindIs "float64" . -}}
{{- if eq (floor .) . }}{{ printf "%.0f" . }}{{ else }}{{ . }}{{ end -}}
{{- else }}{{ . }}{{ end -}}
{{- end }}

{{- /* The settings of the services, as strings. `settings` overrides derived settings, also with 0
and false. */}}
{{- define "moothall.settings" -}}
{{- $settings := include "moothall.derivedSettings" . | fromYaml }}
{{- range $name, $value := .Values.settings }}
{{- $_ := set $settings $name (include "moothall.text" $value) }}
{{- end }}
{{- toJson $settings }}
{{- end }}

{{- /* The settings that follow from the other values. */}}
{{- define "moothall.derivedSettings" -}}
MOOTHALL_DATA_DIR: /data/moothall
MOOTHALL_BUS__URL: nats://nats.{{ .Release.Namespace }}:4222
MOOTHALL_BUS__REPLICAS: {{ .Values.nats.replicas | quote }}
MOOTHALL_BUS__WAIT_SECONDS: "120"
MOOTHALL_BUS__CREDENTIALS_FILE: /etc/moothall/bus/bus.creds
MOOTHALL_WORKSPACE__KIND: kubernetes
MOOTHALL_JOBS__NAMESPACE: {{ .Values.workspaces.namespace }}
MOOTHALL_JOBS__IMAGE: {{ .Values.images.workspace | quote }}
MOOTHALL_JOBS__LINK_IMAGE: {{ .Values.images.moothall | quote }}
{{- with .Values.pods.imagePullSecrets }}
MOOTHALL_JOBS__PULL_SECRETS: {{ toJson . | quote }}
{{- end }}
{{- if .Values.environments.enabled }}
MOOTHALL_WORKSPACE__ENVIRONMENTS: /environments
{{- end }}
{{- if .Values.hosts.enabled }}
MOOTHALL_RAY__MODE: ray
MOOTHALL_RAY__ADDRESS: hosts-head-svc.{{ .Release.Namespace }}:6379
MOOTHALL_RAY__HOSTS: {{ .Values.hosts.replicas | quote }}
MOOTHALL_RAY__WAIT_SECONDS: "120"
{{- else }}
MOOTHALL_RAY__MODE: process
{{- end }}
{{- if .Values.neo4j.enabled }}
MOOTHALL_GRAPH__URL: neo4j://neo4j.{{ .Release.Namespace }}:7687
{{- end }}
{{- if .Values.vllm.enabled }}
MOOTHALL_LLM__BASE_URL: http://vllm.{{ .Release.Namespace }}:8000/v1
MOOTHALL_LLM__CONTEXT_TOKENS: {{ include "moothall.text" .Values.vllm.contextTokens | quote }}
{{- else if .Values.model.url }}
MOOTHALL_LLM__BASE_URL: {{ .Values.model.url | quote }}
{{- with .Values.model.contextTokens }}
MOOTHALL_LLM__CONTEXT_TOKENS: {{ include "moothall.text" . | quote }}
{{- end }}
{{- end }}
{{- if .Values.secrets.tls }}
MOOTHALL_GRPC__HOST: 0.0.0.0
MOOTHALL_GRPC__TLS_CERT: /etc/moothall/tls/tls.crt
MOOTHALL_GRPC__TLS_KEY: /etc/moothall/tls/tls.key
MOOTHALL_WEB__HOST: 0.0.0.0
MOOTHALL_WEB__TLS_CERT: /etc/moothall/tls/tls.crt
MOOTHALL_WEB__TLS_KEY: /etc/moothall/tls/tls.key
{{- with .Values.ingress.host }}
MOOTHALL_WEB__HOSTS: {{ list . | toJson | quote }}
{{- end }}
{{- end }}
{{- if .Values.roles.enabled }}
MOOTHALL_SERVE__LEAVE_SECONDS: "5"
{{- end }}
{{- if .Values.monitoring.enabled }}
MOOTHALL_METRICS__HOST: 0.0.0.0
MOOTHALL_METRICS__PORT: "9464"
{{- end }}
{{- end }}
