// Sends requests of fetch through the proxy of the environment. Node does that itself from 22.21 and 24 on; older
// versions ignore these variables. Each connection is a tunnel through the proxy, and otherwise unchanged.
{
  const { env, versions } = process;
  const [major, minor] = versions.node.split(".").map(Number);
  const own = major >= 24 || (major === 22 && minor >= 21);
  const given = (name) => env[name.toLowerCase()] || env[name] || "";
  const named = given("HTTPS_PROXY") || given("HTTP_PROXY");
  const plain = globalThis.fetch;
  if (env.NODE_USE_ENV_PROXY === "1" && !own && named.startsWith("http://") && typeof plain === "function") {
    const http = require("http"), net = require("net"), tls = require("tls");
    const proxy = new URL(named);
    const direct = given("NO_PROXY").split(",").map((text) => text.trim().toLowerCase().replace(/^\*?\./, "")).filter(Boolean);
    const isDirect = (host) => direct.some((one) => one === "*" || host === one || host.endsWith(`.${one}`));

    const tunnel = (target, done) => {
      const ask = http.request({
        host: proxy.hostname, port: proxy.port || 80, method: "CONNECT", path: target, headers: { host: target }, agent: false,
      });
      ask.once("connect", (answer, socket) => {
        if (answer.statusCode === 200) return done(null, socket);
        socket.destroy();
        done(new Error(`the proxy answered ${answer.statusCode} ${answer.statusMessage} for ${target}`));
      });
      ask.once("error", done);
      ask.end();
    };

    // Called by fetch for each new connection.
    const connect = ({ hostname, port, protocol, servername }, done) => {
      const host = hostname.replace(/^\[|\]$/g, "");
      const number = port || (protocol === "https:" ? 443 : 80);
      const secure = (socket) => {
        const name = servername || (net.isIP(host) ? undefined : host);
        const safe = tls.connect({ socket, servername: name, ALPNProtocols: ["http/1.1"] });
        safe.once("secureConnect", () => done(null, safe)).once("error", (error) => done(error));
      };
      const opened = (error, socket) => {
        if (error) done(error);
        else if (protocol === "https:") secure(socket);
        else done(null, socket);
      };
      if (!isDirect(host.toLowerCase())) return tunnel(`${hostname}:${number}`, opened);
      const socket = net.connect(number, host);
      socket.once("connect", () => opened(null, socket)).once("error", opened);
    };

    // The implementation of fetch is loaded at its first use, and so is this.
    const late = () => {
      globalThis.fetch = plain;
      void globalThis.Headers;
      const place = Symbol.for("undici.globalDispatcher.1");
      const Agent = globalThis[place]?.constructor;
      if (Agent) globalThis[place] = new Agent({ connect });
    };
    globalThis.fetch = function fetch(...args) {
      if (globalThis.fetch === fetch) late();
      return plain(...args);
    };
  }
}
