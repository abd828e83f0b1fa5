"""Tokens whose form shows their provider, such as `ghp_…` or `AKIA…`.

Owns the table. Unlike a scanner of repositories it requires no checksum and no entropy: masking an example token does
no harm. The patterns are in the syntax that RE2 and `re` share; no letter or digit precedes a match.
"""

__all__ = ["TOKENS"]

_A = r"[A-Za-z0-9]"
_B = r"[A-Za-z0-9_\-]"
_H = r"[0-9a-f]"

TOKENS: dict[str, tuple[str, ...]] = {
    "Adafruit, Prefect, Dependency-Track": (rf"(?:aio|pn[bu]|odt)_{_A}{{24,}}",),
    "Alibaba": (rf"LTAI{_A}{{12,24}}",),
    "Airtable": (rf"pat{_A}{{14}}\.{_H}{{40,}}",),
    "Anthropic, OpenAI and compatible": (
        rf"sk-(?:proj|svcacct|admin|None|ant|or|lf)-{_B}{{16,}}",
        rf"sk-{_A}{{20,}}",
    ),
    "Atlassian": (rf"AT(?:ATT|CTT)3x{_B}{{20,}}={{0,2}}[A-Z0-9]*", rf"ATBB{_A}{{24,}}"),
    "AWS": (r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16,}",),
    "Azure": (
        r"[A-Za-z0-9_~.\-]{3}[78]Q~[A-Za-z0-9_~.\-]{30,}",
        rf"{_A}{{40,}}(?:AzSe|AzFu|AZDO|ACDb|\+ASt|APIM)[A-Za-z0-9+/]{{4,}}={{0,2}}",
    ),
    "Buildkite, CircleCI": (rf"bkua_{_H}{{30,}}", rf"CCIPAT_{_B}{{16,}}"),
    "Cloudflare, Contentful": (rf"v1\.0-{_H}{{24}}-{_H}{{100,}}", rf"CFPAT-{_B}{{20,}}"),
    "Databricks": (rf"dapi{_H}{{32}}(?:-\d)?",),
    "DigitalOcean": (rf"do[opr]_v1_{_H}{{32,}}",),
    "Discord": (rf"[MNO]{_B}{{22,27}}\.{_B}{{6,7}}\.{_B}{{27,}}",),
    "Docker": (
        rf"dckr_(?:pat|oat)_{_B}{{16,}}",
        r"SWMTKN-1-[a-z0-9]{20,}-[a-z0-9]{16,}",
        r"SWMKEY-1-[A-Za-z0-9+/]{40,}",
    ),
    "Doppler": (rf"dp\.(?:pt|st|sa|ct|scim|audit|said)\.(?:[a-z0-9_\-]+\.)?{_A}{{24,}}",),
    "Dropbox": (rf"sl\.(?:u\.)?{_B}{{60,}}",),
    "Dynatrace": (r"dt0[a-z]\d\d\.[A-Z0-9]{24}\.[A-Z0-9]{64}",),
    "EasyPost": (rf"EZ[AT]K{_A}{{50,}}",),
    "Figma": (rf"figd_{_B}{{24,}}",),
    "Fly.io": (rf"fo1_{_B}{{24,}}", r"fm[12][ar]?_[A-Za-z0-9+/=_\-]{24,}"),
    "GitHub": (r"gh[pousr]_\w{16,}", r"github_pat_\w{20,}"),
    "GitLab": (
        rf"gl(?:pat|ptt|dt|rt|rtr|cbt|ft|soat|agent|imt|oas|ffct|wt)-{_B}{{16,}}(?:\.{_B}+)*",
        rf"GR1348941{_B}{{16,}}",
    ),
    "Google": (
        rf"AIza{_B}{{30,}}",
        rf"ya29\.{_B}{{16,}}(?:\.{_B}+)*",
        rf"GOCSPX-{_B}{{16,}}",
        rf"1//0{_B}{{24,}}",
    ),
    "Grafana": (rf"glsa_{_A}{{24,}}_{_H}{{8}}", r"glc_[A-Za-z0-9+/]{24,}={0,2}", r"eyJrIjoi[A-Za-z0-9+/]{30,}={0,2}"),
    "HubSpot": (rf"pat-(?:na|eu)\d-{_H}{{8}}-{_B}{{20,}}",),
    "HashiCorp": (rf"hv[sbr]\.{_B}{{20,}}", rf"{_A}{{14}}\.atlasv1\.{_B}{{40,}}"),
    "JSON Web Token": (rf"eyJ{_B}{{6,}}\.{_B}{{4,}}(?:\.{_B}*){{0,3}}",),
    "keys for live and test": (
        rf"(?:ak|pk|key|sec|flb|rzp|shippo|duffel)_(?:live|test|prod|sandbox)_{_A}{{16,}}",
        rf"[sp]k_{_H}{{32,}}",
        rf"mdb_sa_sk_{_B}{{24,}}",
    ),
    "k3s": (rf"K10{_H}{{40,}}::[a-z]+:{_A}+",),
    "Linear, Notion, Postman": (
        rf"lin_(?:api|oauth)_{_A}{{24,}}",
        rf"ntn_{_A}{{30,}}",
        rf"secret_{_A}{{40,}}",
        rf"PMAK-{_H}{{16,}}-{_H}{{16,}}",
    ),
    "mail services": (
        rf"SG\.{_B}{{16,}}\.{_B}{{16,}}",
        rf"xkeysib-{_H}{{40,}}-{_A}{{8,}}",
        rf"key-{_H}{{32}}",
        rf"{_H}{{32}}-us\d{{1,2}}",
    ),
    "model providers": (rf"(?:gsk|r8|hf|api_org|fw|tgp_v1)_{_A}{{24,}}", rf"(?:xai|pplx|nvapi|csk)-{_B}{{24,}}"),
    "NATS": (r"S[UANOCX][A-Z2-7]{56}",),
    "Netlify, Supabase, Render": (
        rf"nfp_{_A}{{24,}}",
        rf"sbp_{_H}{{32,}}",
        rf"sb_secret_{_B}{{16,}}",
        rf"rnd_{_A}{{24,}}",
    ),
    "New Relic": (rf"(?:NR(?:AK|AL|RA|II|JS)|nrak)-{_B}{{16,}}",),
    "1Password, age": (rf"ops_eyJ{_B}{{40,}}", r"AGE-SECRET-KEY-1[0-9A-Z]{40,}"),
    "packages": (
        rf"npm_{_A}{{24,}}",
        rf"pypi-(?:AgE{_B}{{12,}}|{_B}{{32,}})",
        rf"rubygems_{_H}{{16,}}",
        r"oy2[a-z0-9]{43}",
        rf"cio{_A}{{32}}",
        rf"AKCp{_A}{{50,}}",
        rf"cmVmdGtu{_A}{{40,}}",
    ),
    "PlanetScale, Pulumi": (rf"pscale_(?:tkn|pw|oauth)_{_B}{{24,}}", rf"pul-{_H}{{32,}}"),
    "PostHog, Sentry": (rf"ph[xc]_{_B}{{30,}}", r"sntry[su]_[A-Za-z0-9_\-+/=]{24,}"),
    "ReadMe": (r"rdme_[a-z0-9]{40,}",),
    "Scaleway": (r"SCW[A-Z0-9]{17}",),
    "Shopify, Square": (
        rf"shp(?:at|ca|pa|ss|tka)_{_H}{{24,}}",
        rf"sq0(?:atp|csp|idp)-{_B}{{16,}}",
        rf"EAAA{_B}{{50,}}",
    ),
    "Slack": (
        r"xox[a-z](?:\.xox[a-z])?-[A-Za-z0-9\-]{8,}",
        r"xapp-\d-[A-Za-z0-9\-]{8,}",
    ),
    "SonarQube": (rf"sq[pua]_{_H}{{32,}}",),
    "Stripe": (r"[rs]k_(?:live|test|prod)_\w{10,}", r"whsec_[A-Za-z0-9+/]{16,}={0,2}"),
    "Tailscale": (rf"tskey-[a-z]+-{_A}{{8,}}-{_A}{{16,}}",),
    "Telegram": (rf"\d{{8,11}}:A{_B}{{33,36}}",),
    "Tencent": (rf"AKID{_A}{{13,40}}",),
    "Twilio": (rf"SK{_H}{{32}}",),
}
"""Provider → the form of its tokens."""
