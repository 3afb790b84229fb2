// The global `tools`: code calls tools of the host's MCP servers as functions.
//
// `await tools.github.search_issues({query: "x"})` becomes one HTTP request to the port for tools on the sandbox's loopback
// address. The first use of `tools` makes it; before that, nothing but a getter exists. The requests use plain sockets: the
// first use of Node's HTTP client takes 25 ms, and each call four times as long (95 instead of 25 µs).
if (process.env.SANDCELL_TOOLS_URL) {
  const { env } = process;
  const load = require;
  const ownFile = /([^\s(]+):\d+:\d+\)?$/.exec(String(new Error().stack).split("\n", 2)[1])?.[1] ?? "node:internal";

  const makeTools = () => {
    const { connect } = load("net");
    // The driver of a session ends the immediates of a cell that fails.
    const { setImmediate: soon } = load("timers");
    const { parse, stringify } = JSON;
    const { from, concat, byteLength } = Buffer;
    const { now } = Date;
    const inspecting = Symbol.for("nodejs.util.inspect.custom");

    const LINKS_MAX = 16;
    const QUIET_MS = 1000;
    const HEAD_MAX = 64 << 10;
    const LINES_MAX = 50;

    class ToolError extends Error {
      constructor(message, code = "tool_failed", remedy = "", tool = undefined) {
        // The stack keeps this text, and so shows the remedy. It has the frames of the code only.
        super(remedy ? `${message}; ${remedy}` : message);
        const isOurs = (line) => line.startsWith("    at ") && (line.includes(ownFile) || line.includes("node:internal"));
        this.stack = String(this.stack).split("\n").filter((line) => !isOurs(line)).join("\n");
        Object.defineProperty(this, "message", { value: message, writable: true, configurable: true });
        Object.assign(this, { code, remedy, tool });
      }
    }
    Object.defineProperty(ToolError.prototype, "name", { value: "ToolError", writable: true, configurable: true });

    // ---------------------------------------------------------------- connections

    const { hostname, port } = new URL(env.SANDCELL_TOOLS_URL);
    const idle = []; // the most recently used one last
    const waiting = []; // calls that wait for a connection
    let open = 0;

    // A connection. It serves one request at a time, and keeps the process alive only meanwhile.
    class Link {
      constructor() {
        open++;
        this.isNew = true;
        this.reason = "it was closed";
        this.socket = connect(port, hostname).setNoDelay(true);
        this.socket.on("data", (part) => this.read(part));
        this.socket.on("error", (error) => (this.reason = error.code ?? error.message));
        this.socket.on("close", () => this.end());
      }

      // Resolves to the status and the text of the answer. Rejects with a text if the connection ends before.
      send(request) {
        this.parts = [];
        this.received = 0;
        this.whole = undefined; // the size of the answer, once its head is complete
        this.socket.ref();
        this.socket.write(request);
        return new Promise((resolve, reject) => Object.assign(this, { resolve, reject }));
      }

      read(part) {
        if (!this.resolve) return void this.socket.destroy();
        this.parts.push(part);
        this.received += part.length;
        if (this.whole === undefined && !this.readHead()) return;
        if (this.received < this.whole) return;
        const text = concat(this.parts).utf8Slice(this.start, this.whole);
        this.resolve({ status: this.status, text });
        this.resolve = this.reject = undefined;
        this.isNew = false;
        this.release();
      }

      // Returns true if the head of the answer is complete.
      readHead() {
        const data = concat(this.parts);
        this.parts = [data];
        const end = data.indexOf("\r\n\r\n");
        const head = end < 0 ? "" : data.latin1Slice(0, end + 2);
        const size = Number(/\r\ncontent-length: *(\d+)\r\n/i.exec(head)?.[1]);
        this.status = Number(head.slice(9, 12));
        const isHttp = head.startsWith("HTTP/1.1 ") && this.status >= 100 && size >= 0;
        if (end < 0 ? data.length > HEAD_MAX : !isHttp) this.lose("not HTTP");
        if (end < 0 || !isHttp) return false;
        this.start = end + 4;
        this.whole = this.start + size;
        this.closes = /\r\nconnection: *close\r\n/i.test(head);
        return true;
      }

      lose(reason) {
        this.reason = reason;
        this.socket.destroy();
      }

      release() {
        if (this.closes || this.received > this.whole) return void this.socket.destroy();
        if (waiting.length > 0) return void waiting.shift()(this);
        this.used = now();
        this.socket.unref();
        idle.push(this);
      }

      end() {
        open--;
        const at = idle.indexOf(this);
        if (at >= 0) idle.splice(at, 1);
        this.reject?.(this.reason);
        if (waiting.length > 0) waiting.shift()(new Link());
      }
    }

    async function takeLink() {
      while (idle.length > 0) {
        const link = idle.pop();
        // The event loop of code that has computed meanwhile does not know yet that the port has closed the connection. It
        // polls between two immediates.
        if (now() - link.used > QUIET_MS) await new Promise((resolve) => soon(() => soon(resolve)));
        if (link.socket.writable) return link;
      }
      return open < LINKS_MAX ? new Link() : new Promise((resolve) => waiting.push(resolve));
    }

    // Sends a request and returns the object of the answer. A call is never sent twice: the host may have made it. Errors
    // are made here, after an `await`, so that their stacks name the calling code.
    async function ask(method, path, body, tool) {
      let request = `${method} ${path} HTTP/1.1\r\nHost: ${hostname}:${port}\r\n`;
      if (env.SANDCELL_EXECUTION) request += `Sandcell-Execution: ${env.SANDCELL_EXECUTION}\r\n`;
      if (body) request += `Content-Type: application/json\r\nContent-Length: ${byteLength(body)}\r\n`;
      request += `\r\n${body}`;
      let answer;
      while (!answer) {
        const link = await takeLink();
        try {
          answer = await link.send(request);
        } catch (reason) {
          if (method === "GET" && !link.isNew) continue;
          const remedy = method === "GET" || reason === "ECONNREFUSED" ? "" : "the call may have been made all the same";
          throw new ToolError(`the connection to the port for tools broke (${reason})`, "tool_unavailable", remedy, tool);
        }
      }
      let found;
      try {
        found = parse(answer.text);
      } catch {
        // Reported below.
      }
      const error = found?.error;
      if (answer.status < 400 && typeof found === "object" && found) return found;
      if (error?.code) throw new ToolError(error.message || error.code, error.code, error.remedy, tool);
      throw new ToolError(`the port for tools sent no answer of its protocol (HTTP status ${answer.status})`, "tool_unavailable", "", tool);
    }

    async function list(query) {
      const pairs = Object.entries(query).filter(([, value]) => value !== undefined);
      const text = pairs.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
      return ask("GET", `/v1/tools${text && "?"}${text}`, "");
    }

    // ---------------------------------------------------------------- calls

    // Returns why JSON would change a value without an error.
    function reasonAgainst(value) {
      if (typeof value === "bigint") return "is a BigInt";
      if (typeof value === "number" && !Number.isFinite(value)) return `is ${value}`;
      if (value instanceof Map || value instanceof Set) return `is a ${value.constructor.name}`;
      if (ArrayBuffer.isView(value) || value instanceof ArrayBuffer) return "has bytes";
      return "";
    }

    // Returns the arguments as JSON.
    function encode(args, tool) {
      const unfit = (what) => new ToolError(what, "invalid_argument", "pass an object of values that JSON has", tool);
      if (args === null || typeof args !== "object" || Array.isArray(args)) {
        throw unfit(`${tool} takes one object with named arguments: {name: value}`);
      }
      try {
        return stringify(args, function (key, value) {
          const reason = reasonAgainst(this[key]);
          if (reason) throw unfit(`the argument ${key} ${reason}`);
          return value;
        });
      } catch (error) {
        throw error instanceof ToolError ? error : unfit(String(error?.message ?? error).split("\n", 1)[0]);
      }
    }

    function valueOf(found, tool) {
      switch (found.kind) {
        case "json":
          return found.value;
        case "text":
          return found.text;
        case "nothing":
          return undefined;
        case "list":
          return found.items.map((item) => valueOf(item, tool));
        case "link":
          return { uri: found.uri, name: found.name };
        case "image":
        case "audio":
        case "resource":
          if (found.data === undefined) return found.text;
          return Object.assign(from(found.data, "base64"), found.mime && { mime: found.mime }, found.uri && { uri: found.uri });
        default:
          throw new ToolError(`the port for tools sent a value of an unknown kind (${found.kind})`, "tool_unavailable", "", tool);
      }
    }

    async function call(server, name, args = {}) {
      const tool = `${server}.${name}`;
      const body = `{"server":${stringify(server)},"tool":${stringify(name)},"arguments":${encode(args, tool)}}`;
      return valueOf(await ask("POST", "/v1/call", body, tool), tool);
    }

    // ---------------------------------------------------------------- names

    const spelling = (name) => name.replace(/[^\p{L}\p{N}_$]/gu, "_");
    const names = new Map(); // of each server: a promise of the names of its tools, by their names in code

    // Returns the name of a tool from its name in code: `search_issues` may stand for `search-issues`. A name that stands for
    // none or several is returned as it is, and the host reports it.
    async function exactName(server, name) {
      if (!name.includes("_")) return name;
      if (!names.has(server)) names.set(server, spelledNames(server));
      try {
        return (await names.get(server)).get(name) ?? name;
      } catch (error) {
        names.delete(server);
        throw error;
      }
    }

    async function spelledNames(server) {
      const all = (await list({ server })).tools.map((tool) => tool.name);
      const exact = new Map();
      for (const one of all) exact.set(spelling(one), exact.has(spelling(one)) ? spelling(one) : one);
      for (const one of all) exact.set(one, one);
      return exact;
    }

    // A list of tools. Printed, it has one line for each.
    function listed({ tools, total }) {
      const lines = tools.slice(0, LINES_MAX).map(({ server, name, description, input_schema }) => {
        const { properties = {}, required = [] } = input_schema ?? {};
        const args = Object.entries(properties).map(([arg, schema]) => {
          const kind = schema?.enum ? schema.enum.map((value) => stringify(value)).join(" | ") : [schema?.type ?? "any"].flat().join(" | ");
          return `${/^[\w$]+$/.test(arg) ? arg : stringify(arg)}${required.includes(arg) ? "" : "?"}: ${kind}`;
        });
        const about = (description ?? "").trim().split("\n", 1)[0].slice(0, 120);
        return `tools.${server}.${spelling(name)}(${args.length > 0 ? `{${args.join(", ")}}` : ""})${about && ` \u2014 ${about}`}`;
      });
      if (total > lines.length) lines.push(`\u2026 ${total - lines.length} more; tools.search("words") finds tools`);
      return Object.defineProperty(tools, inspecting, { value: () => lines.join("\n") || "no tools" });
    }

    // Names that the language and its libraries read from any value; `then` would make `await tools.github` a call.
    const probes = new Set(["then", "catch", "finally", "toJSON", "inspect", "constructor", "prototype", "asymmetricMatch", "$$typeof"]);

    // Returns an object whose properties are made when they are first read.
    const lazily = (own, help, make) =>
      new Proxy(Object.defineProperty(own, inspecting, { value: () => help }), {
        get(target, name) {
          if (typeof name === "symbol" || name in target || probes.has(name) || name.startsWith("__")) return target[name];
          return (target[name] = make(name));
        },
      });

    const blank = (own) => Object.assign(Object.create(null), own);
    const toolOf = (server) => (name) => {
      const run = async (args) => call(server, await exactName(server, name), args);
      return Object.defineProperty(run, "name", { value: `${server}.${name}` });
    };
    const serverOf = (server) =>
      lazily(blank({}), `the tools of the server ${server}; await tools.list("${server}") lists them`, toolOf(server));
    const own = {
      call: async (tool, args) => call(tool.split(".", 1)[0], tool.slice(tool.indexOf(".") + 1), args),
      list: async (server) => listed(await list({ server })),
      search: async (query, { limit = 10 } = {}) => listed(await list({ query, limit })),
      servers: async () => (await ask("GET", "/v1/servers", "")).servers,
      ToolError,
    };
    const help = 'await tools.SERVER.TOOL({name: value}) calls a tool; await tools.search("words"), tools.list("SERVER"), tools.servers()';
    return lazily(blank(own), help, serverOf);
  };

  const define = (value) =>
    Object.defineProperty(globalThis, "tools", { value, writable: true, enumerable: true, configurable: true });
  let made;
  Object.defineProperty(globalThis, "tools", {
    configurable: true,
    get: () => (made ??= makeTools()),
    // A variable of the code wins.
    set: define,
  });
}
