import type * as http from "node:http";

import { NvshareError } from "./errors.js";

export interface Answer {
  status: number;
  body: unknown;
}

/** The head of the answer to a request. */
export function opened(request: http.ClientRequest): Promise<http.IncomingMessage> {
  return new Promise((resolve, reject) => {
    request.once("error", reject);
    request.once("response", resolve);
  });
}

/** The whole of it. */
export function answerOf(response: http.IncomingMessage): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const parts: Buffer[] = [];
    response.on("data", (part: Buffer) => parts.push(part));
    response.once("error", reject);
    response.once("end", () => {
      const status = response.statusCode ?? 0;
      try {
        const text = Buffer.concat(parts).toString("utf8");
        resolve({ status, body: text === "" ? undefined : JSON.parse(text) });
      } catch {
        reject(new NvshareError(status, "the answer is not JSON"));
      }
    });
  });
}
