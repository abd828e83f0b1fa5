#!/bin/sh
# Creates the directory `secrets` that docker-compose.yml reads: a password and a URL for each user of Redis, and the token of
# the dashboard. What is there already is kept.
#
#     sh deploy/create-secrets.sh
set -eu
umask 077
mkdir -p secrets
chmod 700 secrets

create() { # NAME TEXT
    if [ ! -e "secrets/$1" ]; then
        printf %s "$2" >"secrets/$1"
        # Each is mounted alone, for a user of the container; on this machine nobody else enters the directory.
        chmod 444 "secrets/$1"
    fi
}

generate() { # 64 hexadecimal digits
    od -An -N32 -tx1 /dev/urandom | tr -d ' \n'
}

for user in agent worker beat flower operator admin; do
    create "acl_$user" "$(generate)"
    create "redis_url_$user" "redis://$user:$(cat "secrets/acl_$user")@redis:6379/0"
done
create dashboard_token "$(generate)"
echo "The dashboard, once it runs: http://127.0.0.1:5555/login?next=/mcp&token=$(cat secrets/dashboard_token)"
