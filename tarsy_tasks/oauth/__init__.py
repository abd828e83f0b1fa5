"""OAuth 2 as a client of MCP servers: what workers and `tarsy-tasks auth` have in common.

    endpoint        requests to an authorization server, and the errors when they fail
    discovery       which authorization server a server trusts, and where its endpoints are
    client          the client: its id, and how it authenticates
    registration    a client id for a server that nobody has registered a client with
    authorization   the authorization code flow with PKCE
    token_answer    what a token endpoint answers
    sign_in         one sign-in: its tokens, and what they are bound to
    sealed          the same, encrypted
    store           the same, in Redis, for all workers

    revocation      the end of a sign-in at its authorization server

It takes the parts of the SDK that compute; the SDK's own provider holds a lock during the requests that it
authenticates.
"""
