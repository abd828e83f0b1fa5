def resolve_variables(server, environ):
    return server
