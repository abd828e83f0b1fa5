"""The word lists of masking: the words that make a name the name of a secret, and values that are not secret.

Owns the lists only: `names` and `values` apply them. A *qualifier* is the word before the last one of a name: `api` in
`api_key`.
"""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


STRONG_NAMES = _words("""
    password passwd passphrase passcode passwrd pswd pwd pw psk preshared apikey privatekey accesskey
    clientsecret masterkey signingkey encryptionkey accountkey sharedkey mnemonic
    masterauth authtok
    passwort kennwort passe senha contrasena mdp wachtwoord haslo
""")
"""The value of such a name is a secret, unless it clearly is not."""

WEAK_NAMES = _words("""
    secret token auth jwt bearer credential credentials creds otp totp csrf xsrf passkey authkey sessionkey
    sessionid sessid jsessionid phpsessid dockerconfigjson dockercfg identitytoken secretid authenticationstring
    keysbase64
""")
"""The value of such a name is a secret if it looks like one."""

SECRET_NAMES = STRONG_NAMES | WEAK_NAMES | {"key"}

STRONG_NAME_ENDINGS = tuple(_words("password passwd passphrase passcode pwd bindpw apikey accesskey privatekey"))
"""Endings of strong names that are written as one word: `dbpassword`."""
WEAK_NAME_ENDINGS = ("token", "secret")
PASS_QUALIFIERS = tuple(
    _words("db ssh user root admin smtp mail ldap my mysql sql ftp http pg redis require store key default")
)
"""`dbpass` is a password, `compass` is not."""

SECRET_KEY_QUALIFIERS = _words(
    "api secret private access signing encryption master account preshared shared client subscription"
)
"""`api_key`: the value is a secret, as that of `password`."""
POSSIBLE_SECRET_KEY_QUALIFIERS = _words("""
    auth app application session license deploy service storage hmac jwt aes rsa webhook admin root ssh unseal
    recovery consumer ingest integration write read server user project bot function functions
""")
"""`deploy_key`: the value is a secret if it looks like one."""
NON_SECRET_KEY_QUALIFIERS = _words("""
    public primary foreign partition sort cache row object routing hash group order index range composite unique natural
    surrogate candidate idempotency dedup dedupe deduplication shard message event map dict json label host registry
    path file translation locale i18n redis lookup join search query config setting option sorting grouping data gpg pgp
    trusted authorized known kernel module
""")
"""`cache_key`: never a secret. With any other qualifier, the value of `…_key` is one if it is long and random."""

STRONG_SECRET_QUALIFIERS = _words("""
    client app application consumer shared webhook jwt api session cookie signing user oauth totp otp mfa bot hmac auth
    token refresh access callback encryption master admin root db database
""")
"""`client_secret` is a strong name; `tls_secret` may be the name of an object in Kubernetes."""
SECRET_REFERENCE_QUALIFIERS = _words("pull existing")
"""`existingSecret` is the name of an object in Kubernetes."""
NON_SECRET_TOKEN_QUALIFIERS = _words("""
    next page continuation continue cursor pagination sync skip start resume prev previous
    key eos bos pad unk sep cls mask special added stop vocab
""")
"""`nextToken`: the caller must send it back to get the next page, so it is not a secret, and useless when masked.
`eos_token`: of a tokenizer. `PublicKeyToken`: of .NET."""
ACTION_VERBS = _words("""
    update reset change require requires use uses has is show allow enable disable force verify validate check send
    generate create rotate remember save store forgot skip hide revoke expire
""")
"""`update_password: on_create` says when."""
PAT_QUALIFIERS = _words("github gh gitlab ado azure devops asana docker bitbucket personal")
"""`GITHUB_PAT` is a personal access token, `URL_PAT` a pattern."""
SEED_QUALIFIERS = _words("otp totp mfa wallet hd")
PHRASE_QUALIFIERS = _words("seed recovery backup mnemonic secret pass")
CODE_QUALIFIERS = _words("recovery backup scratch emergency rescue")
"""`recovery_codes`: each is as good as a password."""

IGNORED_SUFFIXES = _words("""
    value string text plain plaintext raw data base b b64 base64 hex hash hashed md5 sha1 sha256 sha512 encrypted enc
    prod production dev staging stage test new old current previous confirm confirmation default initial temp temporary
    json pem v x
""")
"""They say which secret or in which form, and do not change that it is one: `SECRET_KEY_BASE`, `token2`."""

NON_SECRET_VALUES = _words("""
    true false null none nil undefined nan yes no on off enabled disabled empty unset default auto manual any all basic
    sha1 sha224 sha256 sha384 sha512 md5 hs256 hs384 hs512 rs256 rs384 rs512 es256 es384 ps256 eddsa bcrypt scrypt
    argon2 argon2i argon2id pbkdf2
    xoauth2 plain login gssapi external
    bearer digest cram-md5 digest-md5 scram-sha-1 scram-sha-256 ntlm kerberos oidc saml oauth oauth2 ldap jwt opaque
    required optional expected set missing invalid valid expired incorrect wrong changed unchanged reset ok okay hidden
    redacted masked removed omitted filtered denied granted failed success succeeded unknown present absent provided
    rotated same not new old passwords tokens secrets credentials keys placeholder todo fixme
    str string int integer number bool boolean text varchar char object array list dict map bytes byte void char[]
    string[] byte[] []byte optional[str] securestring secretstr float double date uuid
    flag flags option options argument arguments variable variables parameter parameters field fields prompt file here
    below above key keyfile value data
    the a an is are was be must should may can will has have had for to of in on at by with from and or that this it its
    your you my our we i run see ask click open try call
    if when where which what who how please enter type provide use using
""")
"""Values that are not secrets: of settings, about secrets, types, and words that continue a sentence."""

PAIR_NAME_KEYS = _words("""
    name key id label field parameter variable header setting property parameterkey parametername optionname
    variablename settingname propertyname headername fieldname attributename envname
""")
PAIR_VALUE_KEYS = _words("""
    value val default content stringvalue string_value defaultvalue default_value parametervalue optionvalue
    variablevalue settingvalue propertyvalue
""")
"""`{"name": "DB_PASSWORD", "value": "x"}`."""
COLLECTION_KEYS = _words("passwords passphrases secrets credentials tokens apikeys api_keys cookies")
"""`{"passwords": {"root": "x"}}`."""
NESTED_VALUE_KEYS = PAIR_VALUE_KEYS | _words("""
    plaintext plain_text cleartext clear_text plain raw raw_value rawvalue decrypted decoded text const example
    current old new before after previous old_value new_value oldvalue newvalue
""")
"""`{"password": {"value": "x"}}`."""

SCHEMA_VALUE_KEYS = _words("enum examples values anyOf oneOf allOf items")
"""`{"password": {"anyOf": [{"examples": ["x"]}]}}`, as a JSON Schema has it."""

OTHER_SUBJECTS = _words("""
    user users account login host server pod node file path name id ids key role namespace version revision hash digest
    checksum fingerprint commit image url address arn object bucket session trace request job build type in for at from
""")
"""`secret not found, request id: x`: words at the end of a sentence about a secret whose value is something else."""

PROSE_WORDS = _words("""
    the a an is are was were be been being must should shall may might can cannot could will would has have had does do
    did not for to of in on at by with from and or but that this these those it its your you my our we they if when
    where which what who how please enter type provide use using used least than too only no length characters
    character required expired invalid incorrect missing changed field value updated successfully rotated
    generated failed left remaining sent stored as before after same
    de la el los las para con su tu le les des du votre der die das den ein eine ihr dein mit und oder pour
""")
"""Several words that include one of these are a sentence, not a passphrase."""
