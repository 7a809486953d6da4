import * as http from "node:http";

import { errorOf, told } from "./errors.js";
import { answerOf, opened } from "./response.js";

// The scheduler sends an event each 5 s at least. A stream that is silent for longer is dead.
const SILENCE_MS = 15_000;

/** One reply that goes on. It has a connection of its own. */
export class Stream {
  readonly #request: http.ClientRequest;
  readonly #name: string;
  readonly #signal: AbortSignal | undefined;
  #why: Error | undefined; // it was ended from here

  constructor(options: http.RequestOptions, name: string, signal: AbortSignal | undefined) {
    this.#name = name;
    this.#signal = signal;
    const headers = { Accept: "text/event-stream" };
    this.#request = http.request({ ...options, method: "GET", headers, agent: false });
    this.#request.on("error", () => {}); // events() has it from elsewhere
    this.#request.setTimeout(SILENCE_MS, () => this.end(`no event within ${SILENCE_MS} ms`));
  }

  end(message: string): void {
    this.#why ??= new Error(message);
    this.#request.destroy(this.#why);
  }

  /** The data of each event. Rejects when the stream ends: it has no end of its own. */
  async *events(): AsyncGenerator<unknown, never, void> {
    const abort = () => this.end("aborted");
    this.#signal?.addEventListener("abort", abort, { once: true });
    try {
      this.#signal?.throwIfAborted();
      const response = opened(this.#request);
      this.#request.end();
      const stream = await response;
      if (stream.statusCode !== 200) throw errorOf(await answerOf(stream));
      for await (const event of eventsOf(stream)) yield event;
      throw new Error("the stream has ended");
    } catch (error) {
      throw told(this.#why ?? error, this.#name, this.#signal);
    } finally {
      this.#signal?.removeEventListener("abort", abort);
      this.#request.destroy();
    }
  }
}

async function* eventsOf(stream: http.IncomingMessage): AsyncGenerator<unknown, void, void> {
  let text = "";
  for await (const part of stream.setEncoding("utf8")) {
    text += part as string;
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      const data = /^data: (.*)$/m.exec(text.slice(0, end));
      text = text.slice(end + 2);
      if (data?.[1] !== undefined) yield JSON.parse(data[1]);
    }
  }
}
