// Sending a file, telling how far it is. A name that is taken is not replaced unless that is meant.

import { address, ApiError, at, shown, failure, unreachable } from "./api.js";

const TAKEN = 412;

// An upload that can be left by `abort()`. `done` settles when the object is stored, or with an
// `ApiError`; `hear(sent, whole)` is told of bytes.
export function upload({ bucket, name, file, replace, hear }) {
  const request = new XMLHttpRequest();
  const done = new Promise((resolve, reject) => {
    request.upload.addEventListener("progress", (event) => hear(event.loaded, event.total));
    request.addEventListener("error", () => reject(unreachable()));
    request.addEventListener("abort", () => reject(stopped()));
    request.addEventListener("load", () => {
      if (request.status < 300) resolve();
      else reject(failure(request.status, request.responseText));
    });
  });
  request.open("PUT", address(at`/buckets/${bucket}/objects/${name}`));
  for (const [header, value] of Object.entries(shown()))
    request.setRequestHeader(header, value);
  request.setRequestHeader("Content-Type", file.type || "application/octet-stream");
  if (!replace) request.setRequestHeader("If-None-Match", "*");
  request.send(file);
  return { done, abort: () => request.abort() };
}

function stopped() {
  return new ApiError(0, { code: "stopped", message: "It was stopped; nothing is stored." });
}

export function isTaken(error) {
  return error.status === TAKEN;
}
