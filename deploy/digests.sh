#!/bin/sh
# Writes deploy/digests.env: the digest that the registry has for each image of Dockerfile and compose.yaml. A release is built with it.
set -eu
cd "$(dirname "$0")"
trap 'rm -f digests.env.new' EXIT
images=$(grep -ohE '[a-z/-]+:[0-9][0-9a-z.-]*\$\{[A-Z]+_DIGEST' Dockerfile compose.yaml | sort -u)
for found in $images; do
	digest=$(docker buildx imagetools inspect "${found%%\$*}" --format '{{.Manifest.Digest}}')
	echo "${found##*\{}=@$digest"
done > digests.env.new
if grep -vE '^[A-Z]+_DIGEST=@sha256:[0-9a-f]{64}$' digests.env.new; then
	echo 'the registry has no digest for that; nothing is written' >&2
	exit 1
fi
mv digests.env.new digests.env
