"""Tokens whose form shows their provider, such as `ghp_…` or `AKIA…`.

Owns the table. Unlike a scanner of repositories it requires no checksum and no entropy: masking an example token does
no harm. The patterns are in the syntax that RE2 and `re` share; no letter or digit precedes a match.
"""

from tarsy_tasks.masking.rules import read_table

__all__ = ["TOKENS"]

_A = r"[A-Za-z0-9]"
_B = r"[A-Za-z0-9_\-]"
_H = r"[0-9a-f]"

TOKENS = read_table(rf"""
    Adafruit, Prefect, Dependency-Track: (?:aio|pn[bu]|odt)_{_A}{{24,}}
    Alibaba: LTAI{_A}{{12,24}}
    Airtable: pat{_A}{{14}}\.{_H}{{40,}}
    Anthropic, OpenAI and compatible: sk-(?:proj|svcacct|admin|None|ant|or|lf)-{_B}{{16,}}|sk-{_A}{{20,}}
    Atlassian: AT(?:ATT|CTT)3x{_B}{{20,}}={{0,2}}[A-Z0-9]*|ATBB{_A}{{24,}}
    AWS: (?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{{16,}}
    Azure: [A-Za-z0-9_~.\-]{{3}}[78]Q~[A-Za-z0-9_~.\-]{{30,}}
            |{_A}{{40,}}(?:AzSe|AzFu|AZDO|ACDb|\+ASt|APIM)[A-Za-z0-9+/]{{4,}}={{0,2}}
    Buildkite, CircleCI: bkua_{_H}{{30,}}|CCIPAT_{_B}{{16,}}
    Cloudflare, Contentful: v1\.0-{_H}{{24}}-{_H}{{100,}}|CFPAT-{_B}{{20,}}
    Databricks: dapi{_H}{{32}}(?:-\d)?
    DigitalOcean: do[opr]_v1_{_H}{{32,}}
    Discord: [MNO]{_B}{{22,27}}\.{_B}{{6,7}}\.{_B}{{27,}}
    Docker: dckr_(?:pat|oat)_{_B}{{16,}}|SWMTKN-1-[a-z0-9]{{20,}}-[a-z0-9]{{16,}}|SWMKEY-1-[A-Za-z0-9+/]{{40,}}
    Doppler: dp\.(?:pt|st|sa|ct|scim|audit|said)\.(?:[a-z0-9_\-]+\.)?{_A}{{24,}}
    Dropbox: sl\.(?:u\.)?{_B}{{60,}}
    Dynatrace: dt0[a-z]\d\d\.[A-Z0-9]{{24}}\.[A-Z0-9]{{64}}
    EasyPost: EZ[AT]K{_A}{{50,}}
    Figma: figd_{_B}{{24,}}
    Fly.io: fo1_{_B}{{24,}}|fm[12][ar]?_[A-Za-z0-9+/=_\-]{{24,}}
    GitHub: gh[pousr]_\w{{16,}}|github_pat_\w{{20,}}
    GitLab: gl(?:pat|ptt|dt|rt|rtr|cbt|ft|soat|agent|imt|oas|ffct|wt)-{_B}{{16,}}(?:\.{_B}+)*|GR1348941{_B}{{16,}}
    Google: AIza{_B}{{30,}}|ya29\.{_B}{{16,}}(?:\.{_B}+)*|GOCSPX-{_B}{{16,}}|1//0{_B}{{24,}}
    Grafana: glsa_{_A}{{24,}}_{_H}{{8}}|glc_[A-Za-z0-9+/]{{24,}}={{0,2}}|eyJrIjoi[A-Za-z0-9+/]{{30,}}={{0,2}}
    HubSpot: pat-(?:na|eu)\d-{_H}{{8}}-{_B}{{20,}}
    HashiCorp: hv[sbr]\.{_B}{{20,}}|{_A}{{14}}\.atlasv1\.{_B}{{40,}}
    JSON Web Token: eyJ{_B}{{6,}}\.{_B}{{4,}}(?:\.{_B}*){{0,3}}
    keys for live and test: (?:ak|pk|key|sec|flb|rzp|shippo|duffel)_(?:live|test|prod|sandbox)_{_A}{{16,}}
            |[sp]k_{_H}{{32,}}|mdb_sa_sk_{_B}{{24,}}
    k3s: K10{_H}{{40,}}::[a-z]+:{_A}+
    Linear, Notion, Postman: lin_(?:api|oauth)_{_A}{{24,}}|ntn_{_A}{{30,}}|secret_{_A}{{40,}}
            |PMAK-{_H}{{16,}}-{_H}{{16,}}
    mail services: SG\.{_B}{{16,}}\.{_B}{{16,}}|xkeysib-{_H}{{40,}}-{_A}{{8,}}|key-{_H}{{32}}|{_H}{{32}}-us\d{{1,2}}
    model providers: (?:gsk|r8|hf|api_org|fw|tgp_v1)_{_A}{{24,}}|(?:xai|pplx|nvapi|csk)-{_B}{{24,}}
    NATS: S[UANOCX][A-Z2-7]{{56}}
    Netlify, Supabase, Render: nfp_{_A}{{24,}}|sbp_{_H}{{32,}}|sb_secret_{_B}{{16,}}|rnd_{_A}{{24,}}
    New Relic: (?:NR(?:AK|AL|RA|II|JS)|nrak)-{_B}{{16,}}
    1Password, age: ops_eyJ{_B}{{40,}}|AGE-SECRET-KEY-1[0-9A-Z]{{40,}}
    packages: npm_{_A}{{24,}}|pypi-(?:AgE{_B}{{12,}}|{_B}{{32,}})|rubygems_{_H}{{16,}}|oy2[a-z0-9]{{43}}|cio{_A}{{32}}
            |AKCp{_A}{{50,}}|cmVmdGtu{_A}{{40,}}
    PlanetScale, Pulumi: pscale_(?:tkn|pw|oauth)_{_B}{{24,}}|pul-{_H}{{32,}}
    PostHog, Sentry: ph[xc]_{_B}{{30,}}|sntry[su]_[A-Za-z0-9_\-+/=]{{24,}}
    ReadMe: rdme_[a-z0-9]{{40,}}
    Scaleway: SCW[A-Z0-9]{{17}}
    Shopify, Square: shp(?:at|ca|pa|ss|tka)_{_H}{{24,}}|sq0(?:atp|csp|idp)-{_B}{{16,}}|EAAA{_B}{{50,}}
    Slack: xox[a-z](?:\.xox[a-z])?-[A-Za-z0-9\-]{{8,}}|xapp-\d-[A-Za-z0-9\-]{{8,}}
    SonarQube: sq[pua]_{_H}{{32,}}
    Stripe: [rs]k_(?:live|test|prod)_\w{{10,}}|whsec_[A-Za-z0-9+/]{{16,}}={{0,2}}
    Tailscale: tskey-[a-z]+-{_A}{{8,}}-{_A}{{16,}}
    Telegram: \d{{8,11}}:A{_B}{{33,36}}
    Tencent: AKID{_A}{{13,40}}
    Twilio: SK{_H}{{32}}
""")
"""Provider → the form of its tokens."""
