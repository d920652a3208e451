{{/* Peers outside of the cluster, as JSON: every address but those of metadata services and of the own node. */}}
{{- define "gradeloop.outside" -}}
[{"ipBlock":{"cidr":"0.0.0.0/0","except":["169.254.0.0/16","100.100.100.200/32","168.63.129.16/32"]}},{"ipBlock":{"cidr":"::/0","except":["fe80::/10","fd00:ec2::/32"]}}]
{{- end -}}

{{/* Peers that anybody on the internet is, as JSON: the networks that `fetch_page` refuses are left out (activities/providers/environment.py). */}}
{{- define "gradeloop.public" -}}
[{"ipBlock":{"cidr":"0.0.0.0/0","except":["0.0.0.0/8","10.0.0.0/8","100.64.0.0/10","127.0.0.0/8","168.63.129.16/32","169.254.0.0/16","172.16.0.0/12","192.0.0.0/24","192.0.2.0/24","192.168.0.0/16","198.18.0.0/15","198.51.100.0/24","203.0.113.0/24","224.0.0.0/4","240.0.0.0/4"]}},
{"ipBlock":{"cidr":"::/0","except":["::/96","::ffff:0:0:0/96","100::/64","2001::/23","2001:db8::/32","2002::/16","3fff::/20","5f00::/16","64:ff9b:1::/48","fc00::/7","fe80::/10","fec0::/10","ff00::/8"]}}]
{{- end -}}

{{/* The rule to an address, URL or host:port, as JSON; nothing for this machine. From (list address peers): the peers come before what the host says. */}}
{{- define "gradeloop.rule" -}}
{{- $address := index . 0 }}{{ $peers := index . 1 }}
{{- $https := hasPrefix "https:" $address }}
{{- $authority := regexReplaceAll "^[a-z]+://|[/?#].*$" $address "" | splitList "@" | last }}
{{- $port := regexFind ":[0-9]+$" $authority | trimPrefix ":" | default (ternary "443" "80" $https) }}
{{- $host := regexReplaceAll ":[0-9]+$" $authority "" }}{{ $labels := splitList "." $host }}
{{- if not $peers }}
{{- if regexMatch "^[0-9]+(\\.[0-9]+){3}$" $host }}{{ $peers = list (dict "ipBlock" (dict "cidr" (printf "%s/32" $host))) }}
{{- else if contains "[" $host }}{{ $peers = list (dict "ipBlock" (dict "cidr" (printf "%s/128" (trimAll "[]" $host)))) }}
{{- else if regexMatch "[$*]" $host }}{{ $peers = include "gradeloop.outside" "" | fromJsonArray }}
{{- else if eq (len $labels) 1 }}{{ $peers = list (dict "podSelector" dict) }}
{{- else if or (and (eq (len $labels) 2) (not $https)) (eq (index $labels (min 2 (sub (len $labels) 1) | int)) "svc") }}
{{- $peers = list (dict "namespaceSelector" (dict "matchLabels" (dict "kubernetes.io/metadata.name" (index $labels 1)))) }}
{{- else }}{{ $peers = include "gradeloop.outside" "" | fromJsonArray }}{{ end }}
{{- end }}
{{- if not (regexMatch "^(localhost|127\\.|\\[::1\\])" $host) }}{{ dict "to" $peers "ports" (list (dict "port" (int $port) "protocol" "TCP")) | toJson }}{{ end }}
{{- end -}}

{{/* The rules by which a component reaches what the values name, as a JSON array, from root, component and of, the component's own values. */}}
{{- define "gradeloop.egress" -}}
{{- $ := .root }}{{ $v := .root.Values }}{{ $component := .component }}
{{- $models := eq $component "models" }}{{ $evidence := eq $component "evidence" }}
{{- $temporal := or $models $evidence (eq $component "loop") }}
{{- $texts := list }}{{ $rules := list }}
{{- $dns := list }}
{{- range $v.network.dns.ports }}{{ $dns = concat $dns (list (dict "port" . "protocol" "UDP") (dict "port" . "protocol" "TCP")) }}{{ end }}
{{- $dns = dict "ports" $dns }}
{{- with $v.network.dns.to }}{{ $_ := set $dns "to" . }}{{ end }}
{{- $rules = append $rules (toJson $dns) }}
{{- if $temporal }}
{{- $rules = append $rules (include "gradeloop.rule" (list $v.temporal.address $v.network.to.temporal)) }}
{{- if regexMatch "^(s3|gs):" $v.storage.url }}
{{- $rules = append $rules (include "gradeloop.rule" (list ($v.storage.endpoint | default "https://storage.googleapis.com") $v.network.to.storage)) }}
{{- end }}
{{- end }}
{{- if or $models (not $temporal) }}
{{- $peers := $v.network.to.store | default (append (include "gradeloop.outside" "" | fromJsonArray) (dict "namespaceSelector" dict)) }}
{{- $rules = append $rules (include "gradeloop.rule" (list (printf "store:%v" $v.network.storePort) $peers)) }}
{{- end }}
{{- if and $v.telemetry.endpoint (ne $component "upgrade-store") }}
{{- $rules = append $rules (include "gradeloop.rule" (list $v.telemetry.endpoint $v.network.to.telemetry)) }}
{{- end }}
{{- if or $models $evidence }}
{{- range $v.mcp }}{{ with .url }}{{ $texts = append $texts . }}{{ end }}{{ end }}
{{- end }}
{{- if $models }}
{{- $known := empty $v.providers | not }}
{{- range $v.providers }}
{{- with (. | default dict).base_url }}{{ $texts = append $texts . }}{{ else }}{{ $known = false }}{{ end }}
{{- end }}
{{- if not $known }}{{ $texts = append $texts "https://*" }}{{ end }}
{{- range $v.settings }}{{ $texts = concat $texts (regexFindAll "https?://[^\"',\\s]+" (toString .) -1) }}{{ end }}
{{- end }}
{{- range $texts }}{{ $rules = append $rules (include "gradeloop.rule" (list . nil)) }}{{ end }}
{{- if and $evidence $v.fetch.hosts }}
{{- $ports := list 80 443 }}
{{- range $v.fetch.hosts }}{{ with regexFind ":[0-9]+$" . }}{{ $ports = append $ports (trimPrefix ":" . | int) }}{{ end }}{{ end }}
{{- $open := list }}
{{- range $ports | uniq }}{{ $open = append $open (dict "port" . "protocol" "TCP") }}{{ end }}
{{- $peers := include "gradeloop.public" "" | fromJsonArray }}
{{- range $v.fetch.networks }}{{ $peers = append $peers (dict "ipBlock" (dict "cidr" .)) }}{{ end }}
{{- $rules = append $rules (dict "to" $peers "ports" $open | toJson) }}
{{- end }}
{{- range concat $v.network.extraEgress (.of.extraEgress | default list) }}{{ $rules = append $rules (toJson .) }}{{ end }}
{{- printf "[%s]" (without $rules "" | uniq | join ",") }}
{{- end -}}
