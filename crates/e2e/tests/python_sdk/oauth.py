"""OAuth as the official MCP SDK for Python does it: `oauth.py SERVER ISSUER`, the addresses of both. The client knows
nothing but the server's address, its name and its secret; where tokens come from it finds out from the server's refusal.

Run by the end-to-end tests. Prints one line a step and ends with status 0 only when every step was as expected.
"""

import sys
import time

import anyio
import httpx2
from mcp.client import Client
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.streamable_http import streamable_http_client

SERVER, ISSUER = sys.argv[1:]


def check(what, holds, detail=""):
    """Prints the step; ends the program when it failed."""
    print(f"{'ok' if holds else 'FAILED'}: {what}", flush=True)
    if not holds:
        sys.exit(f"{what}: {detail}")


class Memory:
    """Tokens are kept as long as the program runs."""

    tokens = None
    info = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.info

    async def set_client_info(self, info):
        self.info = info


def provider(name, memory):
    return ClientCredentialsOAuthProvider(
        server_url=SERVER, storage=memory, client_id=name, client_secret=f"secret-of-{name}", issuer=ISSUER
    )


async def as_caller(name, work, mode="auto", memory=None):
    """Does the work as a client of this name."""
    async with httpx2.AsyncClient(auth=provider(name, memory or Memory()), timeout=30) as http:
        async with Client(streamable_http_client(SERVER, http_client=http), mode=mode) as client:
            return await work(client)


def text(result):
    return "\n".join(block.text for block in result.content if block.type == "text")


def sandbox(result):
    return result.model_dump(by_alias=True, mode="json")["_meta"]["sandcell/execution"]["sandbox_id"]


async def refusals():
    async with httpx2.AsyncClient(timeout=30) as http:
        async def post(token=None):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            headers |= {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
            body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            return await http.post(SERVER, json=body, headers=headers)

        async def token(name, **form):
            form = {"grant_type": "client_credentials", "resource": SERVER} | form
            answer = await http.post(f"{ISSUER}/token", data=form, auth=(name, f"secret-of-{name}"))
            return answer.json()["access_token"]

        bare = await post()
        challenge = bare.headers["www-authenticate"]
        place = SERVER.replace("/mcp", "/.well-known/oauth-protected-resource/mcp")
        check("without a token: 401", bare.status_code == 401, bare.text)
        check("with a signpost", f'resource_metadata="{place}"' in challenge and 'scope="sandcell"' in challenge, challenge)
        for address in (place, place.removesuffix("/mcp")):
            document = (await http.get(address)).json()
            right = document["resource"] == SERVER and document["authorization_servers"] == [ISSUER]
            check("that leads to the issuer", right, document)
        other = await post(await token("alice", resource="https://other.example.com/mcp"))
        check("a token for another server: 401", other.status_code == 401, other.text)
        check("that says so", 'error="invalid_token"' in other.headers["www-authenticate"], other.headers)
        narrow = await post(await token("carol"))
        check("a token without the scope: 403", narrow.status_code == 403, narrow.text)
        challenge = narrow.headers["www-authenticate"]
        check("that names the scope", 'insufficient_scope' in challenge and 'scope="sandcell"' in challenge, challenge)
        good = await token("alice")
        metrics = await http.get(SERVER.replace("/mcp", "/metrics"), headers={"Authorization": f"Bearer {good}"})
        check("an access token is not for the metrics", metrics.status_code == 403, metrics.text)
        in_address = await http.post(f"{SERVER}?access_token={good}", json={})
        check("and not for the address", in_address.status_code == 400, in_address.text)
        taken = await post(good)
        check("a right one is let in", taken.status_code not in (401, 403), taken.text)


async def owners():
    async def first(client):
        made = await client.call_tool("execute_code", {"code": "x = 41"})
        return sandbox(made)

    async def again(client):
        return await client.call_tool("execute_code", {"code": "x + 1"})

    mine = await as_caller("alice", first)
    kept = await as_caller("alice", again, mode="legacy")
    check("a new token and connection find the sandbox", sandbox(kept) == mine and "42" in text(kept), text(kept))

    async def steal(client):
        return await client.call_tool("execute_code", {"code": "x", "sandbox_id": mine})

    stolen = await as_caller("bob", steal)
    check("another subject does not", "not_found" in text(stolen), text(stolen))


async def rotation():
    async with httpx2.AsyncClient(timeout=30) as http:
        await http.post(f"{ISSUER}/rotate")

    async def ask(client):
        return await client.call_tool("execute_code", {"code": "6 * 7"})

    # Unknown keys are looked for at most every 5 s.
    for _ in range(40):
        try:
            result = await as_caller("alice", ask)
            break
        except Exception as error:
            result = error
            time.sleep(0.5)
    check("after a change of keys tokens work again", "42" in (text(result) if hasattr(result, "content") else ""), result)


async def main():
    await refusals()
    await owners()
    await rotation()
    print("all steps passed")


anyio.run(main)
