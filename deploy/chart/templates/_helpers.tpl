{{- define "tenora.labels" -}}
app.kubernetes.io/name: tenora
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .pool }}
tenora/pool: {{ . }}
{{- end }}
{{- end }}

{{- define "tenora.metadata" -}}
labels:
  {{- include "tenora.labels" . | nindent 2 }}
annotations:
  prometheus.io/scrape: "true"
  prometheus.io/port: {{ .root.Values.metrics.port | quote }}
{{- end }}

{{- /* What every pod has: no account of the cluster, no root. */ -}}
{{- define "tenora.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false {{- /* or a Service named tenora-gateway would set TENORA_GATEWAY_PORT */}}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "tenora.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
resources:
  {{- toYaml .resources | nindent 2 }}
envFrom:
  - secretRef: {name: {{ .secret }}}
{{- end }}

{{- /* Variables; later maps win, so that no setting contradicts what the chart derives from it. */ -}}
{{- define "tenora.env" -}}
{{- $own := dict "TENORA_METRICS_HOST" "0.0.0.0" "TENORA_METRICS_PORT" (toString .root.Values.metrics.port) }}
{{- range $name, $value := mergeOverwrite (dict) .root.Values.settings .settings $own .own }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{- define "tenora.probes" -}}
livenessProbe:
  httpGet: {path: /livez, port: {{ .port }}}
  initialDelaySeconds: 10
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: {{ .port }}}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 1
{{- end }}
