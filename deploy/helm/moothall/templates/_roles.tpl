{{- /* The single Deployment of the services. Only one process can use its data directory. */}}
{{- define "moothall.singleDeployment" -}}
- {name: moothall, component: "", args: [serve], replicas: 1, strategy: {type: Recreate}}
{{- end }}

{{- /* Deployments by role, instead of the single one. HorizontalPodAutoscalers set the replicas of
api and collector. Only one process can have the lease of tools: a second replica would never serve
its APIs, and a new pod waits for the lease of the old one. */}}
{{- define "moothall.roleDeployments" -}}
{{- $rolling := dict "type" "RollingUpdate" "rollingUpdate" (dict "maxSurge" 1 "maxUnavailable" 0) | toJson -}}
- {name: moothall-api, component: api, args: [serve, "--only=api,page"], spread: true, strategy: {{ $rolling }}}
- {name: moothall-collector, component: collector, args: [serve, "--only=collector,planning,graph"], spread: true, strategy: {{ $rolling }}}
- {name: moothall-tools, component: tools, args: [serve, "--only=tools"], replicas: 1, strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 1}}}
- {name: moothall-hosts, component: hosts, args: [serve, "--only=hosts"], replicas: 1, strategy: {{ $rolling }}}
{{- end }}

{{- /* The seconds that a pod gets to end: the two settings, and 30 for everything else. */}}
{{- define "moothall.gracePeriod" -}}
{{- $leave := .MOOTHALL_SERVE__LEAVE_SECONDS | default 0 | float64 | ceil | int -}}
{{- $grace := .MOOTHALL_GRPC__GRACE_SECONDS | default 5 | float64 | ceil | int -}}
{{- add $leave $grace 30 -}}
{{- end }}

{{- /* Annotations that send a browser to the process that has its session. */}}
{{- define "moothall.cookieAffinity" -}}
nginx.ingress.kubernetes.io/affinity: cookie
nginx.ingress.kubernetes.io/affinity-mode: persistent
nginx.ingress.kubernetes.io/session-cookie-name: moothall-process
nginx.ingress.kubernetes.io/session-cookie-samesite: Lax
nginx.ingress.kubernetes.io/session-cookie-secure: "true"
{{- end }}
