{{- define "pulsar-sidecar.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "pulsar-sidecar.matchLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "pulsar-sidecar.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "pulsar-sidecar.matchLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: pulsar
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "pulsar-sidecar.serviceAccountName" -}}
{{- default (ternary (include "pulsar-sidecar.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end }}

{{- define "pulsar-sidecar.image" -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{- define "pulsar-sidecar.imagePullSecrets" -}}
{{- with .Values.images.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- define "pulsar-sidecar.podSecurity" -}}
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- include "pulsar-sidecar.imagePullSecrets" . }}
{{- end }}

{{- define "pulsar-sidecar.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: ["ALL"]
{{- end }}

{{/* How the service and the jobs reach Pulsar; the secrets are files. */}}
{{- define "pulsar-sidecar.connectionEnv" -}}
- name: PULSAR_SIDECAR_WEB_SERVICE_URL
  value: {{ required "pulsar.webServiceUrl: the brokers' admin REST service" .Values.pulsar.webServiceUrl | quote }}
- name: PULSAR_SIDECAR_BROKER_SERVICE_URL
  value: {{ required "pulsar.brokerServiceUrl: the brokers' binary service" .Values.pulsar.brokerServiceUrl | quote }}
- name: PULSAR_SIDECAR_METADATA_STORE_URL
  value: {{ required "pulsar.metadataStoreUrl: zk:HOST:PORT or etcd:http://HOST:PORT, as in broker.conf" .Values.pulsar.metadataStoreUrl | quote }}
{{- with .Values.pulsar.clusterName }}
- name: PULSAR_SIDECAR_CLUSTER_NAME
  value: {{ . | quote }}
{{- end }}
{{- with .Values.auth.client }}
{{- if .enabled }}
- name: PULSAR_SIDECAR_AUTH_PLUGIN
  value: {{ .plugin | quote }}
- name: PULSAR_SIDECAR_AUTH_PARAMS
  value: file:///pulsar-sidecar/secrets/client/{{ .key }}
{{- end }}
{{- end }}
{{- with .Values.auth.metadataStore }}
{{- if .enabled }}
- name: PULSAR_SIDECAR_METADATA_STORE_AUTH
  value: file:///pulsar-sidecar/secrets/metadata-store/{{ .key }}
{{- end }}
{{- end }}
{{- with .Values.tls.broker }}
{{- if .enabled }}
- name: PULSAR_SIDECAR_TLS_TRUST_CERTS_FILE_PATH
  value: /pulsar-sidecar/certs/broker-ca/ca.crt
{{- if .secretName }}
- name: PULSAR_SIDECAR_TLS_CERTIFICATE_FILE_PATH
  value: /pulsar-sidecar/certs/broker/tls.crt
- name: PULSAR_SIDECAR_TLS_KEY_FILE_PATH
  value: /pulsar-sidecar/certs/broker/tls.key
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.tls.zookeeper }}
{{- if .enabled }}
- name: PULSAR_SIDECAR_METADATA_STORE_TLS_TRUST_CERTS_FILE_PATH
  value: /pulsar-sidecar/certs/zookeeper-ca/ca.crt
{{- if .secretName }}
- name: PULSAR_SIDECAR_METADATA_STORE_TLS_CERTIFICATE_FILE_PATH
  value: /pulsar-sidecar/certs/zookeeper/tls.crt
- name: PULSAR_SIDECAR_METADATA_STORE_TLS_KEY_FILE_PATH
  value: /pulsar-sidecar/certs/zookeeper/tls.key
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* One line for each Secret: the volume's name, the directory that it is mounted at, and the Secret's name. */}}
{{- define "pulsar-sidecar.connectionSecrets" -}}
{{- if .Values.auth.client.enabled }}
client secrets/client {{ required "auth.client.secretName: the Secret with the sidecar's token for the brokers" .Values.auth.client.secretName }}
{{- end }}
{{- if .Values.auth.metadataStore.enabled }}
metadata-store secrets/metadata-store {{ required "auth.metadataStore.secretName: the Secret with ZooKeeper's credential" .Values.auth.metadataStore.secretName }}
{{- end }}
{{- range $name, $tls := pick .Values.tls "broker" "zookeeper" }}
{{- if $tls.enabled }}
{{ $name }}-ca certs/{{ $name }}-ca {{ required (printf "tls.%s.caSecretName: the Secret with ca.crt" $name) $tls.caSecretName }}
{{- with $tls.secretName }}
{{ $name }} certs/{{ $name }} {{ . }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "pulsar-sidecar.secretVolumes" -}}
{{- range splitList "\n" (trim .) }}
{{- $words := splitList " " . }}
{{- if . }}
- name: {{ index $words 0 }}
  secret:
    secretName: {{ index $words 2 }}
    defaultMode: 288 # 0440, which YAML 1.2 reads as decimal
{{- end }}
{{- end }}
{{- end }}

{{- define "pulsar-sidecar.secretMounts" -}}
{{- range splitList "\n" (trim .) }}
{{- $words := splitList " " . }}
{{- if . }}
- name: {{ index $words 0 }}
  mountPath: /pulsar-sidecar/{{ index $words 1 }}
  readOnly: true
{{- end }}
{{- end }}
{{- end }}

{{/* The volume of a job: .root, .job (its values), .name */}}
{{- define "pulsar-sidecar.claim" -}}
{{- if not .job.volume.existingClaim }}
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {{ .name }}
  labels:
    {{- include "pulsar-sidecar.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .job.component }}
  annotations:
    helm.sh/resource-policy: keep
spec:
  accessModes: {{ toJson .job.volume.accessModes }}
  {{- with .job.volume.storageClassName }}
  storageClassName: {{ . }}
  {{- end }}
  resources:
    requests:
      storage: {{ .job.volume.size }}
{{- end }}
{{- end }}

{{/* A CronJob up to its containers: .root, .job (its values), .name, .backoffLimit, .ownAccount (with its token) */}}
{{- define "pulsar-sidecar.cronJob" -}}
apiVersion: batch/v1
kind: CronJob
metadata:
  name: {{ .name }}
  labels:
    {{- include "pulsar-sidecar.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .job.component }}
spec:
  schedule: {{ .job.schedule | quote }}
  timeZone: {{ .job.timeZone }}
  concurrencyPolicy: Forbid
  startingDeadlineSeconds: 3600
  successfulJobsHistoryLimit: 3
  failedJobsHistoryLimit: 3
  jobTemplate:
    spec:
      backoffLimit: {{ .backoffLimit }}
      activeDeadlineSeconds: {{ int .job.activeDeadlineSeconds }}
      template:
        metadata:
          labels:
            {{- include "pulsar-sidecar.labels" .root | nindent 12 }}
            app.kubernetes.io/component: {{ .job.component }}
        spec:
          restartPolicy: Never
          serviceAccountName: {{ ternary .name (include "pulsar-sidecar.serviceAccountName" .root) .ownAccount }}
          automountServiceAccountToken: {{ .ownAccount }}
          {{- include "pulsar-sidecar.podSecurity" .root | nindent 10 }}
          {{- include "pulsar-sidecar.placement" .job | nindent 10 }}
{{- end }}

{{- define "pulsar-sidecar.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Kinds of Prometheus' operator, or those of VictoriaMetrics' that have the same fields. */}}
{{- define "pulsar-sidecar.monitoring" -}}
{{- if eq .root.Values.monitoringOperator "victoria-metrics" -}}
apiVersion: operator.victoriametrics.com/v1beta1
kind: {{ get (dict "PodMonitor" "VMPodScrape" "PrometheusRule" "VMRule") .kind }}
{{- else -}}
apiVersion: monitoring.coreos.com/v1
kind: {{ .kind }}
{{- end }}
{{- end }}
