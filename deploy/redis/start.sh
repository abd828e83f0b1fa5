#!/bin/sh
# Starts Redis with the users of users.acl in this directory. Users that are off there get the passwords from the variables
# TARSY_ACL_WORKER, TARSY_ACL_BEAT and so on, or from the files that TARSY_ACL_WORKER_FILE and so on name.
#
#     sh start.sh redis-server --appendonly yes --maxmemory-policy noeviction
set -eu
umask 077

acl=$(mktemp)
while read -r word name state rules; do
    if [ "$state" = off ] && [ "$name" != default ]; then
        variable=TARSY_ACL_$(printf %s "$name" | tr a-z- A-Z_)
        eval "password=\${$variable:-} file=\${${variable}_FILE:-}"
        if [ -z "$password" ] && [ -n "$file" ]; then
            password=$(cat "$file") || exit 2
        fi
        if [ "${#password}" -lt 16 ]; then
            echo "$0: $variable, the password of the Redis user $name, is not set or has fewer than 16 characters" >&2
            exit 2
        fi
        unset "$variable"
        state="on #$(printf %s "$password" | sha256sum | cut -d ' ' -f 1)"
    fi
    printf '%s\n' "$word $name $state $rules"
done <"$(dirname "$0")/users.acl" >"$acl"
unset password

exec "$@" --aclfile "$acl"
