"""Objects in JSON whose value is secret because of their other keys: `{"sensitive": true, "value": "x"}`.

Owns the tables of such keys, and of programs whose output is recognized by its shape. `json_text` asks for each object.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from tarsy_tasks.masking.names import Strength
from tarsy_tasks.masking.rules.vocabulary import PAIR_VALUE_KEYS

__all__ = ["CLUES", "RESOURCES", "find_secret_keys", "is_value_key"]

_FLAGS = "sensitive|secret|masked|issecret|is_secret|secure|issecure|is_secure|encrypted|noecho"
"""If one of these is true, the value is a secret: Terraform, GitLab, Azure DevOps, Octopus, Vercel, CloudFormation."""
_TYPES = "secret|securestring|sensitive|encrypted|secure|secret_text|password|credential"
"""The same for `type`: Parameter Store, Postman, Vercel, Cloudflare."""

SHAPES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "az storage account keys list": (("keyname", "permissions", "value"), ("value",)),
    "az batch account keys list": (("accountname", "primary", "secondary"), ("primary", "secondary")),
    "az eventhubs, servicebus, redis, maps, iot": (("primarykey", "secondarykey"), ("primarykey", "secondarykey")),
    "az eventhubs, servicebus, cut short": (("keyname", "primarykey"), ("primarykey",)),
    "az cosmosdb keys list": (("primarymasterkey",), ("primarymasterkey", "secondarymasterkey")),
    "aws kms decrypt": (("keyid", "plaintext"), ("plaintext",)),
    "gcloud secrets versions access": (("data", "datacrc32c"), ("data",)),
    "JSON Web Key": (("kty", "d"), ("d", "p", "q", "dp", "dq", "qi")),
    "JSON Web Key, symmetric": (("kty", "k"), ("k",)),
    "Elasticsearch, _security/api_key": (("id", "api_key", "encoded"), ("encoded",)),
    "consul acl, nomad acl": (("accessorid", "secretid"), ("secretid",)),
}
"""Program → the keys of an object in its output, and which of them are secret."""

RESOURCES: dict[str, tuple[str, ...]] = {
    "random_password": ("result",),
    "random_bytes": ("base64", "hex"),
    "local_sensitive_file": ("content",),
    **dict.fromkeys(("azurerm_key_vault_secret", "cloudflare_api_token", "doppler_secret"), ("value",)),
    **dict.fromkeys(("azuread_application_password", "azuread_service_principal_password"), ("value",)),
    **dict.fromkeys(("github_actions_secret", "github_dependabot_secret"), ("plaintext_value", "value")),
    **dict.fromkeys(("tailscale_tailnet_key", "doppler_service_token"), ("key",)),
    **dict.fromkeys(("vault_generic_secret", "vault_kv_secret_v2"), ("data_json",)),
    **dict.fromkeys(("kubernetes_secret", "kubernetes_secret_v1", "vault_kv_secret"), ()),
}
"""Terraform resource → its secret attributes, in addition to everything under `data`."""

CLUES = (
    rf"\\*\"(?i:{_FLAGS})\\*\"\s*:\s*\\*\"?true",
    rf"\\*\"(?i:type|kind)\\*\"\s*:\s*\\*\"(?i:{_TYPES})\\*\"",
    rf"\\*\"type\\*\"\s*:\s*\\*\"(?:{'|'.join(RESOURCES)})\\*\"",
    r"\\*\"(?i:permissions)\\*\"\s*:\s*\\*\"(?i:full|read)\\*\"",
    r"\\*\"(?i:primary_?(?:master_?)?key|secondary|plaintext|datacrc32c|accessorid|kty|encoded)\\*\"\s*:",
)
"""Signs of such an object."""

_FLAGS_SET = frozenset(_FLAGS.split("|"))
_TYPES_SET = frozenset(_TYPES.split("|"))
_TELLING = PAIR_VALUE_KEYS.union(*(secrets for _, secrets in SHAPES.values()))


@lru_cache(maxsize=4096)
def is_value_key(key: str) -> bool:
    """Whether an object with such a key may be one of these."""
    return key.lower() in _TELLING


def find_secret_keys(scalars: Mapping[str, str], name: str, resource: str | None) -> Iterator[tuple[str, Strength]]:
    """The keys of an object, called `name`, that contain a secret, each with its strength; `scalars` are its scalar
    values by key in lower case, `resource` is the type of the Terraform resource around it."""
    values = scalars.keys() & PAIR_VALUE_KEYS
    if values and any(scalars.get(flag) == "true" for flag in _FLAGS_SET & scalars.keys()):
        yield from ((key, Strength.STRONG) for key in values)
    elif values and scalars.get("type", "").lower() in _TYPES_SET:
        yield from ((key, Strength.LIKELY) for key in values)
    for keys, secrets in SHAPES.values():
        if all(map(scalars.__contains__, keys)):
            yield from ((key, Strength.LIKELY) for key in secrets if key in scalars)
    if resource is not None:
        keys: Iterable[str] = scalars if name == "data" else RESOURCES[resource]
        yield from ((key, Strength.STRONG) for key in keys if key in scalars)
