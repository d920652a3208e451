// An evidence tool in TypeScript: it runs on this worker, and a grader of any thread may call it (task.yaml says how).
//
//   npm install && npm run build && TEMPORAL_ADDRESS=127.0.0.1:7233 npm start
import { NativeConnection, Worker } from "@temporalio/worker";

/** The argument that gradeloop passes to a remote tool. */
interface ToolCall {
  call: string;
  operation_id: string; // the same at every attempt of one call
  arguments: { lines?: number[] };
  draft: string;
}

/** Counts groups of vowels, a silent e at the end aside: near enough for a haiku. */
function syllables(word: string): number {
  const letters = word.toLowerCase().replace(/[^a-z]/g, "");
  const groups = letters.replace(/([^laeiouy])e$/, "$1").match(/[aeiouy]+/g);
  return letters ? Math.max(1, groups?.length ?? 0) : 0;
}

/** Returns the syllables of each line, and whether they are as many as wanted: a value that a check can decide by. */
async function countSyllables({ arguments: { lines: wanted = [5, 7, 5] }, draft }: ToolCall) {
  const lines = draft.trim().split("\n");
  const counted = lines.map((line) => line.split(/\s+/).reduce((sum, word) => sum + syllables(word), 0));
  return { ok: counted.length === wanted.length && counted.every((count, at) => count === wanted[at]), counted };
}

const connection = await NativeConnection.connect({ address: process.env.TEMPORAL_ADDRESS ?? "127.0.0.1:7233" });
const taskQueue = process.env.TASK_QUEUE ?? "typescript-tools";
const worker = await Worker.create({ connection, taskQueue, activities: { countSyllables } });
await worker.run();
