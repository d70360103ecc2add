// Asking the node. Every failure is an `ApiError` with the API's message and remedy.

const ROOT = "api/v1";
let token = "";

export class ApiError extends Error {
  constructor(status, { code = "", message, remedy = "", retryable = false, ...rest }) {
    super(message);
    this.status = status;
    this.code = code;
    this.remedy = remedy;
    this.retryable = retryable;
    this.rest = rest;
  }
}

// Whether a name can be a part of a path: browsers take these two out of it, and what is meant for
// an object would reach its bucket.
export function hasPath(name) {
  return name !== "." && name !== "..";
}

// A path whose variable parts are quoted: at`/buckets/${bucket}`.
export function at(texts, ...values) {
  const lost = values.find((value) => !hasPath(String(value)));
  if (lost !== undefined) {
    const message = `No address can have the name ${lost} in it.`;
    throw new ApiError(0, { code: "no_path", message, remedy: "Commands reach it." });
  }
  return texts.reduce((path, text, i) => path + encodeURIComponent(values[i - 1]) + text);
}

// Where a path of the API is; `query` without what is empty.
export function address(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null);
  const asked = new URLSearchParams(given.filter(([, value]) => value !== undefined));
  return `${ROOT}${path}${asked.size ? `?${asked}` : ""}`;
}

// The header that shows a request to come from this page; what changes something needs the value
// that /me told.
export function shown() {
  return { "X-Herdbook-Token": token };
}

export function remember(csrf) {
  token = csrf || "";
}

export function get(path, query, signal) {
  return call("GET", path, { query, signal });
}

// The headers of what is there, without its bytes.
export async function head(path, signal) {
  let reply;
  try {
    reply = await fetch(address(path), { method: "HEAD", headers: shown(), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw unreachable();
  }
  if (!reply.ok) throw failure(reply.status, "");
  return reply.headers;
}

export function post(path, body, signal) {
  return call("POST", path, { body, signal });
}

export function put(path, body) {
  return call("PUT", path, { body });
}

export function remove(path, query) {
  return call("DELETE", path, { query });
}

async function call(method, path, { query, body, signal } = {}) {
  const headers = shown();
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const asking = { method, headers, signal, credentials: "same-origin", cache: "no-store" };
  if (body !== undefined) asking.body = JSON.stringify(body);
  let reply;
  let text;
  try {
    reply = await fetch(address(path, query), asking);
    text = await reply.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw unreachable();
  }
  if (!reply.ok) throw failure(reply.status, text);
  return read(text);
}

function read(text) {
  if (!text) return null;
  try {
    return JSON.parse(text);
  } catch {
    const message = "The answer is no JSON: something else answers at this address.";
    throw new ApiError(200, { code: "not_the_node", message, retryable: true });
  }
}

export function unreachable() {
  return new ApiError(0, {
    code: "unreachable",
    message: "The node does not answer.",
    remedy: "See that it runs and that this machine reaches it; the page goes on by itself.",
    retryable: true,
  });
}

// What a reply's text says went wrong. A proxy in between may answer with something else than JSON.
export function failure(status, text) {
  let facts = null;
  try {
    facts = JSON.parse(text).error;
  } catch {
    // Told below.
  }
  if (!facts || !facts.message) {
    facts = { code: `http_${status}`, message: `The node answered with status ${status}.` };
  }
  if (status === 401) dispatchEvent(new CustomEvent("herdbook:out"));
  return new ApiError(status, facts);
}
