"""An OAuth 2.1 authorization server on the loopback, made of Authlib: `issuer.py`. Prints its address and serves until
its standard input is closed.

Clients are `alice`, `bob` and `carol`, each with the secret `secret-of-NAME`; tokens are JWTs by RFC 9068, signed with
RS256, for the resource that was asked for (RFC 8707). carol gets no scope. POST to /rotate makes new keys.
"""

import os
import sys
import threading

os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import ClientMixin, grants
from authlib.oauth2.rfc9068 import JWTBearerTokenGenerator
from flask import Flask, jsonify, request
from joserfc.jwk import KeySet, RSAKey
from werkzeug.serving import make_server

SCOPES = {"alice": "sandcell", "bob": "sandcell", "carol": ""}


class Client(ClientMixin):
    def __init__(self, name):
        self.name = name

    def get_client_id(self):
        return self.name

    def check_client_secret(self, secret):
        return secret == f"secret-of-{self.name}"

    def check_endpoint_auth_method(self, method, endpoint):
        return method in ("client_secret_basic", "client_secret_post")

    def check_grant_type(self, grant_type):
        return grant_type == "client_credentials"

    def get_allowed_scope(self, scope):
        return SCOPES[self.name]


class Credentials(grants.ClientCredentialsGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = ["client_secret_basic", "client_secret_post"]


class Keys:
    def __init__(self):
        self.count = 0
        self.rotate()

    def rotate(self):
        self.count += 1
        fields = {"kid": f"key-{self.count}", "use": "sig", "alg": "RS256"}
        self.set = KeySet([RSAKey.generate_key(2048, fields, private=True)])


keys = Keys()


class Tokens(JWTBearerTokenGenerator):
    def get_jwks(self):
        return keys.set

    def get_audiences(self, client, user, scope):
        return request.form.get("resource", client.get_client_id())


def application():
    app = Flask("issuer")
    server = AuthorizationServer(
        app, query_client=lambda name: Client(name) if name in SCOPES else None, save_token=lambda token, request: None
    )
    server.register_grant(Credentials)

    @app.get("/.well-known/oauth-authorization-server")
    def metadata():
        return jsonify(
            issuer=issuer,
            authorization_endpoint=f"{issuer}/authorize",
            token_endpoint=f"{issuer}/token",
            jwks_uri=f"{issuer}/keys",
            response_types_supported=["code"],
            grant_types_supported=["client_credentials"],
            code_challenge_methods_supported=["S256"],
            token_endpoint_auth_methods_supported=["client_secret_basic", "client_secret_post"],
        )

    @app.get("/keys")
    def public_keys():
        return jsonify(keys.set.as_dict(private=False))

    @app.post("/token")
    def token():
        return server.create_token_response()

    @app.post("/rotate")
    def rotate():
        keys.rotate()
        return jsonify(ok=True)

    return app, server


app, server = application()
http = make_server("127.0.0.1", 0, app, threaded=True)
issuer = f"http://127.0.0.1:{http.server_port}"
server.register_token_generator("default", Tokens(issuer=issuer))
print(issuer, flush=True)
threading.Thread(target=http.serve_forever, daemon=True).start()
sys.stdin.read()
http.shutdown()
