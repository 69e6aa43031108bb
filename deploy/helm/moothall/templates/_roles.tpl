{{- /* The one Deployment of the services. Its data directory is one process's. */}}
{{- define "moothall.one" -}}
- {name: moothall, component: "", args: [serve], replicas: 1, strategy: {type: Recreate}}
{{- end }}

{{- /* Deployments by role, in its place. Replicas of api and collector are the HorizontalPodAutoscalers'; a second of tools would wait with its APIs, and a
new one waits for the old one's lease. */}}
{{- define "moothall.roles" -}}
{{- $rolling := dict "type" "RollingUpdate" "rollingUpdate" (dict "maxSurge" 1 "maxUnavailable" 0) | toJson -}}
- {name: moothall-api, component: api, args: [serve, "--only=api,page"], spread: true, strategy: {{ $rolling }}}
- {name: moothall-collector, component: collector, args: [serve, "--only=collector,planning,graph"], spread: true, strategy: {{ $rolling }}}
- {name: moothall-tools, component: tools, args: [serve, "--only=tools"], replicas: 1, strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 1}}}
- {name: moothall-hosts, component: hosts, args: [serve, "--only=hosts"], replicas: 1, strategy: {{ $rolling }}}
{{- end }}

{{- /* What a pod gets to end, by the settings: two of them, and 30 seconds for all else. */}}
{{- define "moothall.leave" -}}
{{- $leave := .MOOTHALL_SERVE__LEAVE_SECONDS | default 0 | float64 | ceil | int -}}
{{- $grace := .MOOTHALL_GRPC__GRACE_SECONDS | default 5 | float64 | ceil | int -}}
{{- add $leave $grace 30 -}}
{{- end }}

{{- /* What keeps a browser with the process that has its session. */}}
{{- define "moothall.sticky" -}}
nginx.ingress.kubernetes.io/affinity: cookie
nginx.ingress.kubernetes.io/affinity-mode: persistent
nginx.ingress.kubernetes.io/session-cookie-name: moothall-process
nginx.ingress.kubernetes.io/session-cookie-samesite: Lax
nginx.ingress.kubernetes.io/session-cookie-secure: "true"
{{- end }}
