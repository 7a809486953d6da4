import type { LossReason, Refused } from "./bodies.js";

/** The scheduler refuses a request, or does not answer. */
export class NvshareError extends Error {
  override name = "NvshareError";
  /** The HTTP code; 0: no answer has come. */
  readonly status: number;
  /** Why the lease was taken away; only with 410. */
  readonly reason?: LossReason;
  /** The classes that there are; only for an unknown one. */
  readonly classes?: string[];

  constructor(status: number, message: string, more: unknown = {}, options?: ErrorOptions) {
    super(message, options);
    this.status = status;
    const { reason, classes } = more as { reason?: LossReason; classes?: string[] };
    if (reason !== undefined) this.reason = reason;
    if (classes !== undefined) this.classes = classes;
  }
}

/** `withLease` got no lease, and there was no `onRefused`. */
export class NvshareRefusedError extends NvshareError {
  override name = "NvshareRefusedError";
  readonly refused: Refused;

  constructor(status: number, refused: Refused) {
    super(status, refused.reason ? `${refused.result}: ${refused.reason}` : refused.result);
    this.refused = refused;
  }
}

/** The lease is gone: it was taken away, or the scheduler does not know it. */
export function isGone(error: unknown): boolean {
  return error instanceof NvshareError && (error.status === 404 || error.status === 410);
}

/** What the scheduler says where it refuses a request. */
export function errorOf({ status, body }: { status: number; body: unknown }): NvshareError {
  const said = (body ?? {}) as { error?: string };
  return new NvshareError(status, said.error ?? `the scheduler answers ${status}`, said);
}

/** A failure on the way to the scheduler `name`, as callers hear of it. */
export function told(error: unknown, name: string, signal: AbortSignal | undefined): unknown {
  if (signal?.aborted) return signal.reason;
  if (error instanceof NvshareError) return error;
  const why = error instanceof Error ? error.message : String(error);
  return new NvshareError(0, `${name}: ${why}`, {}, { cause: error });
}
