export * from "./bodies.js";
export * from "./client.js";
export { NvshareError, NvshareRefusedError } from "./errors.js";
export { Lease } from "./lease.js";
