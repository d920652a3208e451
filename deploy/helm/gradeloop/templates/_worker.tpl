{{- define "gradeloop.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Labels, as JSON, from (list $) or (list $ component). */}}
{{- define "gradeloop.labels" -}}
{{- $labels := dict "app.kubernetes.io/name" (index . 0).Release.Name }}
{{- with rest . }}{{ $_ := set $labels "app.kubernetes.io/component" (first .) }}{{ end }}
{{- toJson $labels }}
{{- end -}}

{{- define "gradeloop.account" -}}
{{ .Values.serviceAccount.name | default (ternary .Release.Name "default" .Values.serviceAccount.create) }}
{{- end -}}

{{/* The values of all Pods with those of one, as JSON, from (list $ $of): maps are merged, lists joined, other values replaced. */}}
{{- define "gradeloop.merged" -}}
{{- $root := index . 0 }}{{ $of := index . 1 }}{{ $merged := dict }}
{{- range $key := list "podAnnotations" "podLabels" "podSecurityContext" "securityContext" "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" "runtimeClassName" "serviceAccountName" "extraArgs" "extraEnv" "extraEnvFrom" "extraVolumes" "extraVolumeMounts" "extraInitContainers" "extraContainers" "podDisruptionBudget" }}
{{- $all := index $root.Values $key }}{{ $own := index $of $key }}
{{- if kindIs "map" $all }}{{ $own = mergeOverwrite (deepCopy $all) ($own | default dict) }}
{{- else if kindIs "slice" $all }}{{ $own = concat $all ($own | default list) | default list }}
{{- else }}{{ $own = $own | default $all }}{{ end }}
{{- $_ := set $merged $key $own }}
{{- end }}
{{- toJson $merged }}
{{- end -}}

{{/* The template of a Pod, from root, component (a role, receiver, upgrade-store) and of, the component's own values. */}}
{{- define "gradeloop.pod" -}}
{{- $ := .root }}{{ $component := .component }}{{ $own := .of }}{{ $of := include "gradeloop.merged" (list $ .of) | fromJson }}
{{- $job := eq $component "upgrade-store" }}{{ $receiver := eq $component "receiver" }}{{ $models := eq $component "models" }}{{ $keys := and $models $.Values.secrets.keys }}
{{- $temporal := not (or $job $receiver) }}
{{- $tools := and $.Values.tools (or $models (eq $component "evidence")) }}
{{- $labels := include "gradeloop.labels" (list $ $component) | fromJson }}
{{- $volumes := concat (list "scratch" "home") (ternary (list "keys") list (not (empty $keys))) }}
{{- $folder := trimPrefix "file://" $.Values.storage.url | trimSuffix "/" }}{{ $shared := not (and $temporal (hasPrefix "file:" $.Values.storage.url)) }}
{{- range $of.extraVolumes }}{{ $volumes = append $volumes .name }}{{ end }}
{{- range $of.extraVolumeMounts }}
{{- if not (has .name $volumes) }}{{ fail (printf "extraVolumeMounts of %s: there is no volume %q; add it to extraVolumes" $component .name) }}{{ end }}
{{- if hasPrefix (printf "%s/" (trimSuffix "/" .mountPath)) (printf "%s/" $folder) }}{{ $shared = true }}{{ end }}
{{- end }}
{{- if not $shared }}{{ fail (printf "storage.url is %s, and %s has no volume there; add one that all workers share to extraVolumes and extraVolumeMounts" $.Values.storage.url $component) }}{{ end -}}
metadata:
  labels: {{ merge (deepCopy $labels) $of.podLabels | toJson }}
  {{- $annotations := dict }}
  {{- if not $job }}
  {{- $annotations = dict "prometheus.io/scrape" "true" "prometheus.io/port" "9464" "checksum/settings" (printf "%s%s" (include "gradeloop.settings" $) (toJson $.Values.tools) | sha256sum) }}
  {{- end }}
  {{- with mergeOverwrite $annotations $of.podAnnotations }}
  annotations: {{ toJson . }}
  {{- end }}
spec:
  serviceAccountName: {{ $of.serviceAccountName | default (include "gradeloop.account" $) | quote }}
  automountServiceAccountToken: {{ $.Values.serviceAccount.automount }}
  enableServiceLinks: false
  {{- if $job }}
  restartPolicy: OnFailure
  {{- else }}
  terminationGracePeriodSeconds: {{ add $.Values.drainSeconds 10 }}
  topologySpreadConstraints:
    {{- range $of.topologySpreadConstraints | default (list (dict "maxSkew" 1 "topologyKey" "kubernetes.io/hostname" "whenUnsatisfiable" "ScheduleAnyway")) }}
    - {{ merge (dict) . (dict "labelSelector" (dict "matchLabels" $labels)) | toJson }}
    {{- end }}
  {{- end }}
  {{- with $.Values.imagePullSecrets }}
  imagePullSecrets: {{ toJson . }}
  {{- end }}
  {{- range $key := list "nodeSelector" "tolerations" "affinity" "priorityClassName" "runtimeClassName" }}
  {{- with index $of $key }}
  {{ $key }}: {{ toJson . }}
  {{- end }}
  {{- end }}
  securityContext: {{ toJson $of.podSecurityContext }}
  {{- with $of.extraInitContainers }}
  initContainers: {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ ternary "upgrade" "worker" $job }}
      image: {{ include "gradeloop.image" $ | quote }}
      {{- with $.Values.image.pullPolicy }}
      imagePullPolicy: {{ . }}
      {{- end }}
      command: {{ ternary (list "gradeloop" "store" "upgrade") (concat (list "gradeloop" "worker" "--role" $component) $of.extraArgs) $job | toJson }}
      {{- if or (not $job) $of.extraEnvFrom }}
      envFrom:
        {{- if not $job }}
        - configMapRef: {name: {{ $.Release.Name }}-settings}
        {{- end }}
        {{- if $models }}
        - configMapRef: {name: {{ $.Release.Name }}-providers}
        {{- end }}
        {{- with $of.extraEnvFrom }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
      {{- if or $models (not $temporal) $.Values.temporal.apiKeySecret $of.extraEnv }}
      env:
        {{- if or $models (not $temporal) }}
        - name: GRADELOOP_STORE
          valueFrom: {secretKeyRef: {name: {{ $.Values.secrets.store | quote }}, key: {{ $.Values.secrets.storeKey | quote }}}}
        {{- end }}
        {{- if $receiver }}
        - {name: GRADELOOP_RECEIVER__ADDRESS, value: "0.0.0.0:4318"}
        - {name: GRADELOOP_RECEIVER__TOKEN, value: OTLP_TOKEN}
        - name: OTLP_TOKEN
          valueFrom: {secretKeyRef: {name: {{ $own.tokenSecret | quote }}, key: {{ $own.tokenSecretKey | quote }}}}
        {{- end }}
        {{- if and $temporal $.Values.temporal.apiKeySecret }}
        - name: TEMPORAL_API_KEY
          valueFrom: {secretKeyRef: {name: {{ $.Values.temporal.apiKeySecret | quote }}, key: {{ $.Values.temporal.apiKeySecretKey | quote }}}}
        {{- end }}
        {{- with $of.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
      {{- if not $job }}
      ports:
        {{- if $receiver }}
        - {name: otlp, containerPort: 4318}
        {{- end }}
        - {name: health, containerPort: 8246}
        - {name: metrics, containerPort: 9464}
      startupProbe:
        httpGet: {path: /readyz, port: health}
        periodSeconds: 2
        timeoutSeconds: 6
        failureThreshold: 60
      livenessProbe:
        httpGet: {path: /healthz, port: health}
        periodSeconds: 10
        timeoutSeconds: 6
        failureThreshold: 6
      readinessProbe:
        httpGet: {path: /readyz, port: health}
        periodSeconds: 10
        timeoutSeconds: 6
      {{- end }}
      resources: {{ $own.resources | toJson }}
      securityContext: {{ toJson $of.securityContext }}
      volumeMounts:
        - {name: scratch, mountPath: /tmp}
        - {name: home, mountPath: /home/gradeloop}
        {{- if $keys }}
        - {name: keys, mountPath: /run/secrets/gradeloop, readOnly: true}
        {{- end }}
        {{- if and $temporal $.Values.temporal.tlsSecret }}
        - {name: temporal, mountPath: /run/secrets/temporal, readOnly: true}
        {{- end }}
        {{- if and $temporal $.Values.secrets.encryption }}
        - {name: encryption, mountPath: /run/secrets/encryption, readOnly: true}
        {{- end }}
        {{- if $tools }}
        - {name: tools, mountPath: /etc/gradeloop/tools, readOnly: true}
        {{- end }}
        {{- with $of.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    {{- with $of.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    - {name: scratch, emptyDir: {{ $own.scratch | default dict | toJson }}}
    - {name: home, emptyDir: {{ $own.home | default dict | toJson }}}
    {{- if $keys }}
    - name: keys
      secret: {secretName: {{ $.Values.secrets.keys | quote }}, defaultMode: 288} # 0440: YAML 1.1 and 1.2 read octal numbers differently
    {{- end }}
    {{- if and $temporal $.Values.temporal.tlsSecret }}
    - name: temporal
      secret: {secretName: {{ $.Values.temporal.tlsSecret | quote }}, defaultMode: 288}
    {{- end }}
    {{- if and $temporal $.Values.secrets.encryption }}
    - name: encryption
      secret: {secretName: {{ $.Values.secrets.encryption | quote }}, defaultMode: 288}
    {{- end }}
    {{- if $tools }}
    - {name: tools, configMap: {name: {{ $.Release.Name }}-tools}}
    {{- end }}
    {{- with $of.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
