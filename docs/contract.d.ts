// The wire contract of gradeloop (contract.md) as TypeScript.
// Generated from its JSON Schemas by `make docs`. What has a default is optional; a null counts as absent.

export type JsonValue = string | number | boolean | null | JsonValue[] | { [key: string]: JsonValue };

/** Scores and metadata that a case's hooks added once it had ended: `result.after_each.named_scores["Tone"]`. */
export interface AfterEach {
  /** New scores by metric, and those that take the place of what the criteria's scores come to. */
  named_scores?: { [key: string]: number };
  /** The test's own metadata, and what the hooks returned. */
  metadata?: { [key: string]: JsonValue };
  /** Metadata of the response that the hooks returned. */
  response_metadata?: { [key: string]: JsonValue };
  /** The hook that failed, and why; then nothing was added. */
  error?: string | null;
}

/** A finished run of an agent, in one conversation or several: `AgentRun(id="7", transcripts=(RunTranscript(messages=said),))`. */
export interface AgentRun {
  /** The id of the run, unique among those that are judged together. */
  id: string;
  /** The conversations of the run, in order. */
  transcripts: RunTranscript[];
  /** Data about the run, shown to a judge only where the judge's configuration asks for it: it may hold the answer. */
  metadata?: { [key: string]: JsonValue };
  /** The place of these messages in a longer run, if they are a part of one; they are cited by their numbers there. */
  excerpt?: RunExcerpt | null;
}

/** The argument of the update `approve`: a person allows a tool call. */
export interface ApproveRequest {
  /** The id of the call, as in `waiting_for`. */
  call: string;
  /** The person's name, as it is recorded. */
  by: string;
}

/** One question to a person. */
export interface AskedOfPerson {
  /** The question: a criterion to decide, or a tool call to allow. */
  kind: "criterion" | "call";
  /** The criterion's id, or the id of the tool call. */
  id: string;
}

/** An image or a file, by its address or as a `data:` URL. */
export interface Attachment {
  /** An image by default, or a file. */
  type?: "image" | "file";
  /** `https://…`, which the vendor fetches, or `data:image/png;base64,…` (png, jpeg, gif, webp; of a file `application/pdf`). */
  url: string;
  /** The detail in which OpenAI's models look at an image. */
  detail?: "auto" | "low" | "high" | null;
}

/** The one argument of the workflow `GradingBatch`: `BatchRequest(batch_id="nightly", total=500)`; the cases are stored by then. */
export interface BatchRequest {
  /** Id of the batch. */
  batch_id: string;
  /** The number of cases that were uploaded. */
  total: number;
  /** Name in lists and reports; the batch's id by default. */
  name?: string | null;
  /** The suite, where `name` is the description of a run; only for lists and searches. */
  suite?: string | null;
  /** The most calls in flight; never more than 80 % of the slots of all workers of the queue. */
  at_once?: number;
  /** The budget of all attempts together; the batch pauses when it is used up. */
  budget?: Budget | null;
  /** The batch pauses when this many cases are errors. */
  max_errors?: number | null;
  /** The batch pauses when more than this share of the ended cases are errors, from the 20th case on; 1 never pauses it. */
  max_error_rate?: number;
  /** The least share of passed cases, which reports and exit codes use; the workflow does not. */
  pass_rate?: number;
  /** The share of all cases that may end in an error, which reports and exit codes use; the workflow does not. */
  allow_errors?: number;
  /** The pass rate corrected by labels, which `eval --labels` leaves with an ended batch for reports; the workflow does not use it. */
  corrected?: GatedRate | null;
  /** Whether a verdict is asked for in any case; exit codes use it, the workflow does not. */
  asks?: boolean;
  /** Figures calculated from the cases' named metrics, which reports use; the workflow does not. */
  derived_metrics?: DerivedMetric[];
  /** The batch ends as soon as its answer about `pass_rate` is known; its cases are in random order then. By default all are asked. */
  until_decided?: UntilDecided | null;
  /** The labels that correct the rate that `until_decided` looks at, with digests of outputs; by default it is that of the judge. */
  labels?: Label[];
  /** The batch or file of results against which no case may regress; then `pass_rate` does not decide. */
  baseline?: string | null;
  /** The answer that was known before all cases were asked, which the worker writes; with a `baseline` that of all, too. */
  decision?: EarlyAnswer | null;
  /** Retries of a call after a transient error. */
  retries?: number;
  /** Whether drafts and verdicts of earlier batches are reused from the cache. */
  cache?: boolean;
  /** Milliseconds to wait before every call; it is a pause between calls where `at_once` is 1. */
  delay?: number;
  /** Ended cases that run again on resume: `errors`; `invalid` adds judgements without a valid answer; `failures` adds failures, which are graded without the cache. A case whose calls lost their workers runs again only if it is named. */
  again?: "errors" | "invalid" | "failures" | null;
  /** Ids of the ended cases that run again; all that `again` says by default. */
  cases?: string[];
  /** Priority of the batch's calls; level 4 by default, behind threads. */
  priority?: Priority;
}

/** The status, counts and usage of a batch: `(await batches.result("nightly")).passed`. */
export interface BatchSummary {
  /** Id of the batch. */
  batch_id: string;
  /** Name in lists and reports. */
  name?: string | null;
  /** Name of the suite that the cases are from. */
  suite?: string | null;
  /** Tenant that the calls are counted for. */
  tenant?: string | null;
  /** Models that draft and judge, as `provider:name`. */
  models?: string[];
  /** ISO 8601, UTC. */
  created: string;
  /** `running`, `paused` by a limit or a person, `finished`, or `stopped`. */
  status: "running" | "paused" | "finished" | "stopped";
  /** The reason why the batch is paused or stopped; null otherwise. */
  reason?: string | null;
  /** Number of cases. */
  total: number;
  /** Cases that passed. */
  passed?: number;
  /** Cases that failed. */
  failed?: number;
  /** Cases that their judge does not decide, by the suite's `abstain`. */
  unsure?: number;
  /** Cases without a verdict because of an error. */
  errors?: number;
  /** Cases that ended without being judged whole: nothing was asked of them, or something of it was left out. */
  ungraded?: number;
  /** Cases that wait for a person. */
  waiting?: number;
  /** Cases whose verdicts or draft came from the cache, and that cost nothing. */
  cached?: number;
  /** The usage of all attempts of all cases. */
  usage?: Usage;
  /** Limits on tokens and cost; by default there are none. */
  budget?: Budget | null;
  /** The share of judged cases, 0 to 1, that must pass. */
  pass_rate?: number;
  /** The share of all cases, 0 to 1, that may end in an error. */
  allow_errors?: number;
  /** The pass rate corrected by labels; where it has a decision, that is the batch's answer. None without labels. */
  corrected?: GatedRate | null;
  /** The batch or file of results against which no case may regress, where that decides instead of `pass_rate`. */
  baseline?: string | null;
  /** The answer that was known before all cases were asked; with a `baseline` that of all, too. */
  decision?: EarlyAnswer | null;
  /** Whether a verdict was asked for in any case. */
  asks?: boolean;
  /** Figures calculated from the cases' named metrics, in this order. */
  derived_metrics?: DerivedMetric[];
  /** The number of calls that a provider refused for their rate. */
  throttled?: number;
  /** The model that refused the last of them. */
  throttled_by?: string | null;
}

/** The limits of a thread's model calls in total, checked before every call: `Budget(max_cost_usd=0.5)`. A model whose server does not report what its calls use is refused after its first call. */
export interface Budget {
  /** The limit of prompt and completion tokens together. */
  max_tokens?: number | null;
  /** The limit in US dollars by the worker's price table; refused where the price of a model is unknown. */
  max_cost_usd?: number | null;
}

/** A case of a batch: what is judged, or who drafts it, and by which rubric: `Case(id="a", output="Hi!", rubric="- polite")`. */
export interface Case {
  /** Unique in its batch; the same from one run of a suite to the next, so that two batches can be compared. */
  id: string;
  /** Description of the case in reports. */
  description?: string | null;
  /** The variables that the suite's texts were filled with; shown, never sent to a model. */
  vars?: { [key: string]: JsonValue };
  /** The label of the suite's prompt. */
  prompt?: string | null;
  /** The column of a matrix: the generator's label; equal for all cases of a generator. */
  label?: string | null;
  /** The conversation before the output; its last message is the user's where a generator answers it. */
  messages?: MessageInput[];
  /** The images of the conversation, whose labels stand in its texts: the model that drafts sees them, whoever judges the labels. */
  images?: Attachment[];
  /** The output that is judged; None where `generator` drafts it. */
  output?: string | null;
  /** The drafter; without one, `output` is judged. */
  generator?: Generator | null;
  /** Criteria, and how they add up. */
  rubric: RubricInput;
  /** The judge; the worker's default model if it is absent. */
  grader?: Grader | null;
  /** Least share of votes, 0 to 1, for all criteria or by criterion; a verdict with fewer is unsure. */
  abstain?: number | { [key: string]: number } | null;
  /** The model that is asked anew what the graders are unsure of; by default nobody is, and a person decides. */
  escalate?: ModelSpecInput | null;
  /** Functions that make of the output what is judged, one after the other. */
  transforms?: CodeText[];
  /** The number of the repetition, from 0; every repetition has a draft and verdicts of its own. */
  repeat?: number;
  /** Whether the case runs the full loop: draft, judge, revise. */
  loop?: boolean;
  /** Most drafts of a case that loops. */
  max_iterations?: number;
  /** The judgement of a finished run, where the case is one; the rubric is then the judge's, or empty for a judge with a schema. */
  judging?: JudgingRequest | null;
  /** Whether the case asks for no verdict: its rubric is empty, and it ends as `ungraded`. */
  asks_nothing?: boolean;
  /** The ids of the cases whose outputs are compared with one another, its own among them, where a check of the rubric compares them. */
  compared_with?: string[];
  /** The named metrics of the suite in which the criteria's scores count. */
  metrics?: MetricShare[];
  /** Cases that end first, by the names of the marks for their outputs: `draft/...` for the draft, others for what was judged of it. */
  follows?: { [key: string]: string };
  /** Assertions of the suite that are not judged, each with the reason. The case never passes; with nothing to judge it does not run. */
  left_out?: string[];
  /** Functions that are called in the sandbox once the case has ended, and add scores and metadata to its result. */
  after_each?: CodeText[];
  /** Facts about the test that those functions are given. */
  metadata?: { [key: string]: JsonValue };
}

/** The result of a case; an error is never a verdict, neither passed nor failed: `CaseResult.rows()` has its criteria. */
export interface CaseResult {
  /** The case's position in the batch, from 0. */
  index: number;
  /** The case's id. */
  id: string;
  /** The number of the repetition, from 0. */
  repeat?: number;
  /** Description of the case. */
  description?: string | null;
  /** Label of the suite's prompt. */
  prompt?: string | null;
  /** Column of a matrix: the generator's label. */
  label?: string | null;
  /** Variables that filled the suite's texts. */
  vars?: { [key: string]: JsonValue };
  /** `queued`, `waiting` for a person, `passed`, `failed`, `unsure`, `error`, or `ungraded`: nothing judged it whole. */
  status: "queued" | "waiting" | "passed" | "failed" | "unsure" | "error" | "ungraded";
  /** The score by the rubric's own scoring, 0 to 1 unless an assertion in code gives more or less; None without a verdict. */
  score?: number | null;
  /** The output that was judged, the best draft where the case loops; None where no draft was written. */
  output?: string | null;
  /** The grader's summary; empty without one. */
  explanation?: string;
  /** Verdicts on the criteria, in the rubric's order. */
  criteria?: CriterionRow[];
  /** Ids of the criteria for which the case did not pass, the worst first; None where that is not known. */
  decided_by?: string[] | null;
  /** The rubric's threshold, if the gate passed and only the score missed it. */
  missed_threshold?: number | null;
  /** The id of the criterion that did not pass with the lowest score; one of weight 0 never is it. */
  worst_criterion?: string | null;
  /** Ids of the criteria that do not decide whether the case passes. */
  optional?: string[];
  /** Ids of the criteria whose votes disagree too much, where it hangs on them whether the case passes. */
  unsure?: string[];
  /** The model that was unsure, where the model of `escalate` decided. */
  escalated_from?: string | null;
  /** The reason why there is no verdict, or why a `queued` case did not run. */
  error?: string | null;
  /** The named metrics of the suite in which the criteria's scores count. */
  metrics?: MetricShare[];
  /** Assertions of the suite that were not judged, each with the reason. */
  left_out?: string[];
  /** The usage of drafting and judging in this attempt; a cached draft or verdict costs nothing. */
  usage?: Usage;
  /** True where the verdicts or the draft came from the cache, and nothing was paid for. */
  cached?: boolean;
  /** The model that judged; None if only checks decided. */
  grader?: string | null;
  /** Number of earlier attempts, from 0. */
  attempt?: number;
  /** The number of drafts of a case that loops. */
  iterations?: number | null;
  /** The workflow that graded the case, where the case has a workflow of its own. */
  thread_id?: string | null;
  /** The judgement of a finished run, where the case is one. */
  judgement?: JudgeResult | null;
  /** The time when the case ended, ISO 8601, UTC. */
  finished?: string | null;
  /** Verdicts and comments of people. */
  ratings?: Rating[];
  /** Scores and metadata of the case's hooks, or which of them failed; they change no verdict. */
  after_each?: AfterEach | null;
}

/** The tool that decides a criterion without a model. */
export interface Check {
  /** The name of the tool: `true` or `{"ok": true}` passes, `false` or `{"ok": false, ...}` fails, with the other keys as the gap. */
  tool: string;
  /** The tool's input: the whole draft, or its last fenced code block (the whole draft if it has none). */
  extract?: "text" | "code";
  /** Arguments that the tool is given beside the draft. */
  arguments?: { [key: string]: JsonValue };
  /** Code that makes of the output what this check is given; only a batch runs it, for its own checks. */
  transform?: CodeText | null;
}

export type CheckInput = string | { tool: string; extract?: "text" | "code"; arguments?: { [key: string]: JsonValue }; transform?: CodeText | null; };

/** A text of Python or JavaScript that is run in the worker's sandbox. */
export interface CodeText {
  /** Language of the code. */
  language: "javascript" | "python";
  /** An expression or a function's body; with `file`, all of that file. */
  code: string;
  /** The file's name. */
  file?: string;
  /** The file's function that is called; empty for what a file of JavaScript exports. */
  function?: string;
  /** The value of `context["config"]` in the code. */
  config?: JsonValue;
  /** Above 0, the code gets an output's context, and `{answer, context}` is shown: of the output (1), or before its last transform (2). */
  finds_context?: number;
}

/** A heading or an introduction among the criteria: the grader reads it, and nothing is judged by it. */
export interface Context {
  /** Position of the criterion that follows it, from 0; the number of criteria at the end. */
  before: number;
  /** The heading or introduction. */
  text: string;
}

/** A pass rate corrected for the judge's error, with its 95 % interval. */
export interface CorrectedRate {
  /** The rate that the judge says, uncorrected. */
  raw: number;
  /** The corrected rate, 0 to 1. */
  value: number;
  /** Lower end of the 95 % interval, 0 to 1. */
  low: number;
  /** Upper end of the 95 % interval, 0 to 1. */
  high: number;
}

/** A rubric of criteria, and the grader that judges by it. */
export interface CriteriaJudge {
  /** The judge's id; by default `rubric-` and the first digits of its sha256. */
  id?: string;
  /** Number of the judge's version, from 1. */
  version?: number;
  /** Criteria, and how they add up. */
  rubric: RubricInput;
  /** The grader, as a thread has it: model, system_prompt and tools, or a remote grader. */
  grader?: Grader | null;
  /** Least share of agreeing votes by key; a verdict with a smaller one is unsure. */
  abstain?: { [key: string]: number } | null;
  /** Model that is asked once about unsure verdicts. */
  escalate?: ModelSpecInput | null;
}

/** One requirement of a rubric: what must hold, who decides it, its weight: `Criterion(description="polite", weight=2)`. */
export interface Criterion {
  /** A letter, then letters, digits, `_`, `.` or `-`, 64 at most; `c` and the position by default. */
  id?: string;
  /** The requirement; an object if the author's own prompt reads its keys. */
  description: string | { [key: string]: JsonValue };
  /** Whether the rubric is met only if this criterion passes. */
  required?: boolean;
  /** The weight in the score. */
  weight?: number;
  /** Whether it must *not* hold: the grader is asked as written, and its verdict and score are inverted. */
  negate?: boolean;
  /** The scale of a number that the grader gives beside its verdict; below its threshold the criterion does not pass. */
  score?: Scale | null;
  /** The tool that decides; no model is asked. */
  check?: Check | null;
  /** Whether a person decides it, once everything else passes. */
  human?: boolean;
  /** The grader of this criterion; the thread's grader by default. */
  grader?: ModelSpec | RemoteGrader | null;
  /** Samples of the grader. The majority decides; a tie does not pass. */
  votes?: number;
  /** Graders that judge together, with one vote each; the majority decides. */
  panel?: (ModelSpec | RemoteGrader)[];
  /** Whether the grader quotes its evidence; the quotes are looked up in the conversation. */
  quotes?: boolean;
  /** Whether a pass needs a quote that was found. */
  require_quotes?: boolean;
  /** The prompt for this criterion; the rubric's, or gradeloop's, by default. */
  prompt?: OwnPrompt | null;
  /** The form of the answer: a row of the verdict, or `{reason, pass, score: 0..1}`, as in promptfoo, in a call of its own. With `similar`, nobody is asked: `grader` names an embedding model, and the score is the cosine between the draft and the description, or the best of the texts under the description's key `similar_to`. */
  form?: "row" | "pass_score" | "similar";
  /** Scores by category, instead of `pass` and `score` in the answer: the grader names one, which passes if its score is above 0. */
  categories?: { [key: string]: number };
  /** Code that makes of the output what its grader is shown, in a call of its own; a batch runs it, without a loop and without tools. */
  transform?: CodeText | null;
  /** The name of the group that it belongs to. */
  group?: string | null;
}

export type CriterionInput = string | { id?: string; description: string | { [key: string]: JsonValue }; required?: boolean; weight?: number; negate?: boolean; score?: Scale | null; check?: CheckInput | null; human?: boolean; grader?: ModelSpecInput | RemoteGrader | null; votes?: number; panel?: (ModelSpecInput | RemoteGrader)[]; quotes?: boolean; require_quotes?: boolean; prompt?: OwnPromptInput | null; form?: "row" | "pass_score" | "similar"; categories?: { [key: string]: number }; transform?: CodeText | null; group?: string | null; };

/** The verdict on one criterion: who decided, and why: `[row.gap for row in evaluation.criteria if not row.passed]`. */
export interface CriterionRow {
  /** Id of the criterion. */
  id: string;
  /** The criterion's description, as text. */
  name: string;
  /** True if the criterion passes. */
  passed: boolean;
  /** The judge's reason, in a sentence or two. */
  reason: string;
  /** The defect; absent on a pass. */
  gap?: string | null;
  /** Whether no verdict was given: the row is neither a pass nor a confirmed fail. */
  unverified?: boolean;
  /** The judge; `cached` is a model that had answered the identical question before, `nobody` a person who was not asked. */
  by?: "model" | "tool" | "human" | "cached" | "nobody";
  /** The grader's number on the criterion's scale (the median of several), a check's share of the score, or an assertion's number. */
  score?: number | null;
  /** Whether several graders disagreed. */
  contested?: boolean;
  /** The votes of several graders; absent for a single one. */
  votes?: Vote[];
  /** A passage of the conversation that a grader gives as evidence. */
  quotes?: Quote[];
  /** Data that a remote grader returned beside its verdict. */
  metadata?: { [key: string]: JsonValue } | null;
  /** The grader, where the criterion names its own, or a fallback answered. */
  grader?: string | null;
  /** The model that was to judge, where the grader is its fallback. */
  instead_of?: string | null;
  /** A person's verdict, which counts instead. */
  override?: Override | null;
}

/** The argument of the update `decide`: a person's verdict on a criterion that waits for it. */
export interface DecideRequest {
  /** Id of the grading run. */
  grading_run_id: string;
  /** Iteration of the grading run, from 0. */
  iteration: number;
  /** Id of the criterion. */
  criterion: string;
  /** The person's verdict. */
  passed: boolean;
  /** The defect; required if the criterion does not pass. */
  gap?: string | null;
  /** The person's name, as it is recorded. */
  by: string;
}

/** A function that a model may call in its draft; nobody runs it, and the call is the draft. */
export interface DeclaredFunction {
  /** Name of the function. */
  name: string;
  /** Description that the model reads. */
  description?: string;
  /** The JSON Schema of the arguments, of type `object`; none for a function without arguments. */
  parameters?: { [key: string]: JsonValue } | null;
  /** Whether the server enforces the schema, where it can. */
  strict?: boolean;
}

/** The argument of the update `deny`: a person forbids a tool call. */
export interface DenyRequest {
  /** Id of the tool call. */
  call: string;
  /** The person's name, as it is recorded. */
  by: string;
  /** The reason, which the model that made the call gets. */
  why: string;
}

/** A figure that is calculated from the named metrics of a batch. */
export interface DerivedMetric {
  /** Name of the figure. */
  name: string;
  /** Arithmetic over the sums of named metrics, `__count`, and derived metrics before this one: `(Tone + Accuracy) / __count`. */
  value: string;
}

/** The draft about which a person is asked, with what checks and graders found in it. */
export interface DraftInQuestion {
  /** Index of the message in the thread. */
  index: number;
  /** The draft; None above 128 KiB (read it with the query `messages`). */
  text: string | null;
  /** The verdicts on this draft that are there already; above 64 KiB without their reasons and quotes. */
  rows: CriterionRow[];
  /** Index of the draft about which a person was asked before; None where this is the first. */
  previous?: number | null;
  /** The difference from that draft; None if there is none, or if it is too large. */
  changes?: DraftPiece[] | null;
}

/** A stretch of a comparison of two drafts. */
export interface DraftPiece {
  /** Text of both drafts, of the new one, of the old one, or a note of unchanged text that is not shown. */
  kind: "same" | "added" | "removed" | "left_out";
  /** The text; for `left_out` a note of how many unchanged characters are not shown. */
  text: string;
}

/** The answer of a gate that was known before all cases were asked: `EarlyAnswer(answer="passed", asked=81, risk=0.05, wanted=0.9)`. */
export interface EarlyAnswer {
  /** The answer of the gate. */
  answer: "passed" | "failed";
  /** The number of cases, in the order of the batch, after which it was known. */
  asked: number;
  /** The largest probability that asking all cases would say otherwise. */
  risk: number;
  /** The share of the cases, 0 to 1, for which it holds that as many pass, or do not. */
  wanted: number;
  /** Whether it is the answer of the rate that labels correct. */
  corrected?: boolean;
}

/** An error that the run records beside what was said. */
export interface ErrorPart {
  /** Always `error`. */
  type?: "error";
  /** The kind of error: `timeout`, `RateLimitError`. */
  name?: string | null;
  /** The error's message. */
  text: string;
}

/** One grading pass: result, rows, usage, and which draft was judged: `result.evaluations[-1].explanation`. */
export interface Evaluation {
  /** Id of the grading run. */
  grading_run_id: string;
  /** The iteration of the run, from 0. */
  iteration: number;
  /** The result of the pass, computed from its rows. */
  result: "satisfied" | "needs_revision" | "failed" | "grader_error";
  /** The status of the run after this pass. */
  status: "running" | "waiting" | "interrupted" | "satisfied" | "max_iterations_reached" | "failed" | "grader_error" | "superseded";
  /** The grader's summary, or the error's type, message and status. */
  explanation: string;
  /** A row for each criterion; none for a `grader_error`. */
  criteria?: CriterionRow[];
  /** The score by the rubric's own scoring, 0 to 1 unless an assertion in code gives more or less; None where nothing could be graded. */
  score?: number | null;
  /** Whether some row has no verdict. */
  unverified?: boolean;
  /** The usage of this pass. */
  usage?: Usage;
  /** Index of the judged message in the thread. */
  draft: number;
  /** The model that judged, a fallback where it did so; None where only checks decided. */
  grader?: string | null;
  /** The sha256 of the rubric's canonical form. */
  rubric_sha256?: string | null;
  /** The version of the grading prompts. */
  prompt_version?: string | null;
  /** Notes about the models: settings passed on unchecked, a model that is retired. */
  notes?: string[];
  /** The result with people's overrides; None where there are none. */
  overridden_result?: "satisfied" | "needs_revision" | "failed" | null;
}

/** Something that happened in a thread, without its texts: `async for event in client.watch("haiku-1"): print(event.type)`. */
export interface Event {
  /** The event's number in the thread, from 1 without gaps. */
  seq: number;
  /** The kind of event; `docs/watching.md` lists them. */
  type: "run_started" | "message" | "rubric_evaluation_start" | "rubric_evaluation_end" | "tool_called" | "run_ended" | "interrupted" | "resumed" | "rubric_supplied" | "rubric_rejected" | "waiting" | "decided" | "approved" | "denied" | "overridden" | "drafting";
  /** Time of the event, ISO 8601, UTC. */
  time: string;
  /** Id of the grading run; null if nothing is graded. */
  grading_run_id?: string | null;
  /** Iteration of the grading run, from 0; null if nothing is graded. */
  iteration?: number | null;
  /** Index of the message or evaluation that the event is about. */
  index?: number | null;
  /** The id of the criterion that a person decided or overrode. */
  criterion?: string | null;
  /** The id of a tool call that a person approved or denied. */
  call?: string | null;
  /** The tool that was called, approved or denied. */
  tool?: string | null;
  /** The role that called the tool. */
  role?: "generator" | "grader" | "check" | null;
  /** The fault of a supplied rubric that was rejected. */
  why?: string | null;
  /** The reason why the run was interrupted. */
  reason?: "person" | "budget" | "failure" | "outage" | null;
  /** The result of an evaluation that ended. */
  result?: string | null;
  /** The status of the run after an evaluation, or at its end. */
  status?: "running" | "waiting" | "interrupted" | "satisfied" | "max_iterations_reached" | "failed" | "grader_error" | "superseded" | null;
  /** The end of the draft so far, of an event `drafting`: a watcher makes it, with the `seq` before it, and no thread records it. */
  draft?: string | null;
}

/** A provider's model with its settings. */
export interface FallbackModel {
  /** The model as `provider:model`. */
  id: string;
  /** The settings of its calls. */
  config?: ModelConfig;
}

export type FallbackModelInput = string | { id: string; config?: ModelConfig; };

/** The author's own sentences for feedback: around criteria that fail, are unverified, optional or passing, and before remarks. */
export interface Feedback {
  /** First sentence; the language's own by default. */
  opening?: string | null;
  /** Sentence before the criteria that fail. */
  failing?: string | null;
  /** Sentence before the criteria without a verdict. */
  unverified?: string | null;
  /** Sentence before the optional criteria that fail. */
  suggested?: string | null;
  /** Sentence before the graders' remarks. */
  remarks?: string | null;
  /** Sentence before the criteria that pass. */
  passing?: string | null;
  /** Last sentence. */
  closing?: string | null;
}

/** An image, a sound, a document: what is known of it, and its text where it has one. */
export interface FilePart {
  /** Always `file`. */
  type?: "file";
  /** Name of the file. */
  name?: string | null;
  /** Media type, such as `image/png`. */
  media_type?: string | null;
  /** Address of the file. */
  url?: string | null;
  /** Its size, where the run holds the content; the content itself is not shown. */
  bytes?: number;
  /** The text of a document, or what was transcribed of a recording. */
  text?: string;
}

/** The iteration at which a thread was forked off another: `(await client.state("haiku-1-fork")).forked_from`. */
export interface ForkedFrom {
  /** Id of the thread that was forked. */
  thread_id: string;
  /** Id of the grading run. */
  grading_run_id: string;
  /** Counted from 0. */
  iteration: number;
}

/** A pass rate beside the one corrected for the judge's error, and what follows for a threshold. */
export interface GatedRate {
  /** Runs that the judge passed. */
  passed: number;
  /** Runs that the judge decided. */
  runs: number;
  /** The independent runs that a run, one that people passed, and one that they failed are worth: less than 1 where they share a case. */
  worth?: [number, number, number];
  /** The corrected rate; null if the labels cannot correct it. */
  corrected: CorrectedRate | null;
  /** Counts of labels that measure the judge's error. */
  error: JudgeError;
  /** Least rate that passes, 0 to 1; null without a gate. */
  threshold: number | null;
  /** Passed where the interval's lower bound reaches the threshold, failed where its upper bound does not; None without a threshold. */
  decision: "passed" | "failed" | "inconclusive" | null;
  /** The number of labels that would decide, where the decision is inconclusive; None where no number would. */
  wanted?: number | null;
}

/** The drafter, `Generator(model="openai:gpt-5-mini")`: a model, or an activity or workflow of another worker, in any language. */
export interface Generator {
  /** Tool calls; 25 by default. The model gets one last turn without tools. */
  max_tool_calls?: number | null;
  /** Turns with tools; 30 by default. */
  max_turns?: number | null;
  /** The model that drafts. */
  model?: ModelSpecInput | null;
  /** The type of an activity that takes `{messages, iteration, feedback}` and returns `{messages}` or text. */
  activity?: string | null;
  /** The type of a workflow with the argument and result of `activity`. */
  workflow?: string | null;
  /** The task queue on which the activity or workflow is served. */
  task_queue?: string | null;
  /** Seconds without a heartbeat after which the activity is tried again; an activity that sends none leaves it out. */
  heartbeat_timeout?: number | null;
  /** System prompt of the model; none by default. */
  system_prompt?: string | null;
  /** Names of the worker's tools, and definitions of remote tools. */
  tools?: (string | RemoteTool)[];
  /** Whether the generator's system prompt contains the rubric; otherwise the generator sees it only in feedback. */
  show_rubric?: boolean;
  /** Functions that the draft of a case may call instead of saying something. Nobody runs them: the calls, as JSON, are the draft. */
  functions?: DeclaredFunction[];
  /** `auto`, `none`, `required`, or the name of the function that must be called; the provider's default where it is absent. */
  function_choice?: string | null;
  /** The API whose reply the draft imitates when it calls functions; `chat` by default. */
  shown_as?: "chat" | "function_call" | "responses" | "anthropic" | "bedrock" | "google" | null;
  /** The JSON that the draft of a case is asked to be. */
  output_form?: OutputForm | null;
}

/** The judge, `Grader(model="openai:gpt-5-mini")`: a model, an activity of another worker, or a function of the worker's tools. */
export interface Grader {
  /** Tool calls; 25 by default. The model gets one last turn without tools. */
  max_tool_calls?: number | null;
  /** Turns with tools; 30 by default. */
  max_turns?: number | null;
  /** The grader's model; by default the first of the worker's table for which it has a key, the same for a whole grading run. */
  model?: ModelSpecInput | null;
  /** The type of an activity that takes `{messages, draft, criteria, iteration, sample}` and returns a verdict. */
  activity?: string | null;
  /** The task queue on which the activity is served. */
  task_queue?: string | null;
  /** The name of a function in the worker's tools, with the argument and result of `activity`. */
  function?: string | null;
  /** Grading instructions that replace gradeloop's; the trust boundary and the form of the answer stay. */
  system_prompt?: string | null;
  /** Names of the worker's tools, and definitions of remote tools. */
  tools?: (string | RemoteTool)[];
  /** The length of gradeloop's own text in the prompt; by default short for a model whose context has 8,192 tokens at most. */
  prompt?: "full" | "short" | null;
  /** Messages that are marked as `hidden` when they join the thread. */
  hide?: HiddenMessages[];
}

/** A group of criteria that counts as one. */
export interface Group {
  /** The name that its criteria refer to. */
  group: string;
  /** Whether the rubric is met only if the group passes. */
  required?: boolean;
  /** The group's weight in the rubric's score, to which its mean contributes. */
  weight?: number;
  /** The mean at which the group passes; without it, its required criteria decide. */
  threshold?: number | null;
}

/** Messages that graders are not shown: those that have all that it names; answers, which may be judged, are never among them. */
export interface HiddenMessages {
  /** Role of the hidden messages. */
  role?: "user" | "assistant" | "tool" | null;
  /** Source of the hidden messages, as in `Message.source`. */
  source?: string | null;
  /** The message's `name`; that of a tool's result is the tool's. */
  name?: string | null;
}

/** The answer of the update `interrupt`, once the calls in flight have stopped. */
export interface Interruption {
  /** False where nothing was running, or a result that came together with the interrupt ended the turn. */
  interrupted: boolean;
  /** The thread's run; None where nothing is graded. */
  grading_run_id: string | null;
  /** Iteration of the thread's run, from 0, also after its end; null if nothing is graded. */
  iteration: number | null;
  /** The phase in which the run was stopped; None where it was not. */
  phase: "generating" | "grading" | null;
}

/** The argument of the update `invoke`: one turn of a thread. */
export interface InvokeRequest {
  /** New messages, the last one of the user; without any an interrupted run continues, or the last draft is graded again. */
  messages?: MessageInput[];
  /** The rubric; absent or null keeps the sticky one, and `""` clears it. */
  rubric?: RubricInput | null;
  /** The most iterations of the run that this turn starts; the thread's own by default. */
  max_iterations?: number | null;
  /** The thread's budget from now on; unchanged by default. */
  budget?: Budget | null;
  /** The thread's variables from now on: they fill every rubric, the sticky one too. */
  vars?: { [key: string]: JsonValue } | null;
  /** The key that makes the turn idempotent: the same key again attaches to the turn or returns its result. The update id by default. */
  key?: string | null;
}

/** Counts of labels by people that a judge got right. */
export interface JudgeError {
  /** Runs that people passed. */
  passed: number;
  /** Those of them that the judge passed. */
  passed_found: number;
  /** Runs that people failed. */
  failed: number;
  /** Those of them that the judge failed. */
  failed_found: number;
}

/** One judgement of one run; a `FAILURE` says nothing about the run: `(await judge(run)).output["label"]`. */
export interface JudgeResult {
  /** The judgement's id, which is the Temporal workflow's. */
  id: string;
  /** Id of the judged run. */
  agent_run_id: string;
  /** Id of the judge. */
  rubric_id: string;
  /** Version of the judge. */
  rubric_version: number;
  /** Answer of the judge, in the shape of its schema; empty for a `FAILURE`. */
  output: { [key: string]: JsonValue };
  /** `DIRECT_RESULT` with an output, or `FAILURE` without one. */
  result_type: "DIRECT_RESULT" | "FAILURE";
  /** Rollouts, votes, ties and citations; a `FAILURE` has its `reason`, `raw_text`, and `again`: whether the same may be run again. */
  result_metadata?: { [key: string]: JsonValue };
  /** Tokens, calls, seconds and cost in US dollars. */
  usage?: Usage;
  /** The model that judged; None if only checks decided, or no model was reached. */
  model?: string | null;
  /** Requests that were sent to providers, the failed ones included. */
  attempts?: number;
  /** The sha256 of what the judge was sent, the judgement's random code masked; None where a judgement takes several calls. */
  prompt_sha256?: string | null;
  /** The sha256 of the judge; None in the workflow's own results, to which the Python judge adds it. */
  judge_sha256?: string | null;
  /** The sha256 of the run as it was judged; None as for `judge_sha256`. */
  run_sha256?: string | null;
  /** The batch that judged; None where a workflow of the judgement's own did. */
  batch_id?: string | null;
  /** The keys with fewer agreeing votes than `abstain` says: neither a pass nor a fail. */
  unsure?: string[];
  /** The id of the unsure judgement that this one replaces, by the model of `escalate`; None for any other. */
  escalated_from?: string | null;
  /** Whether it passes by `gate`; None for a `FAILURE`, for an unsure one, and without a gate. */
  passed?: boolean | null;
  /** The rule that the command had; None without one, and in the workflow's own results. */
  gate?: PassGate | null;
}

/** The one argument of the workflow `Judging`. */
export interface JudgingRequest {
  /** The judge: a schema or criteria. */
  judge: SchemaJudge | CriteriaJudge;
  /** The finished run that is judged. */
  run: AgentRun;
  /** Number of this judgement of the run by the same judge, from 0. */
  repeat?: number;
  /** Priority of the calls if slots or a rate are short. */
  priority?: Priority | null;
  /** Whether votes and rollouts that cannot change the answer are not asked; by default all are, and their shares are known. */
  until_decided?: boolean;
}

/** Annotation of one run by one person. */
export interface Label {
  /** Id of the labelled run, or of the case. */
  agent_run_id: string;
  /** The values by key of the judge's output, `{"label": "match"}`; some of the keys are enough. */
  label_value: { [key: string]: JsonValue };
  /** The person's reason; empty without one. */
  reason?: string;
  /** The person, who has one label per run. */
  created_by?: string;
  /** The sample or prompt that runs share, which therefore resemble each other; the run itself by default. */
  cluster?: string;
  /** The output of a case of a suite when it was labelled: `eval --labels` counts the label only for this output. */
  output?: string | null;
}

/** One message of a conversation; absent fields stay out of its JSON: `Message(role="user", content="Write a haiku.")`. */
export interface Message {
  /** Role of the author. */
  role: "user" | "assistant" | "tool";
  /** The text; it may be sent as blocks, too. */
  content?: string;
  /** The author's name; of a tool's result the tool's. */
  name?: string | null;
  /** The author besides the role: `rubric_grader` of feedback, `turn_limit` of the request to answer now. */
  source?: string | null;
  /** The tool calls of an answer of role `assistant`. */
  tool_calls?: ToolCall[];
  /** The id of the call that a message of role `tool` answers. */
  tool_call_id?: string | null;
  /** Parts that only the provider understands, such as signatures and encrypted reasoning; they are sent back to it unread. */
  vendor?: { [key: string]: JsonValue } | null;
  /** The model that wrote it, where that is a fallback of the one that was to. */
  model?: string | null;
  /** The type of the record that a judge is shown, for a part of a finished run that is neither a plain text nor a tool's. */
  kind?: "text" | "reasoning" | "tool_call" | "tool_result" | "file" | "error" | "other" | "finding" | null;
  /** Further fields of the record that a judge is shown: `is_error` of a tool's result, `media_type` of a file. */
  about?: { [key: string]: JsonValue } | null;
  /** Images and files of a user's message, each with its label in `content`; sent as blocks of `content`, they are written so. */
  attached?: Attachment[];
  /** True where graders are not shown it; an answer, which may be judged, cannot be hidden. */
  hidden?: boolean;
}

/** One message of a conversation; absent fields stay out of its JSON: `Message(role="user", content="Write a haiku.")`. */
export interface MessageInput {
  /** Role of the author. */
  role: "user" | "assistant" | "tool";
  /** The text; it may be sent as blocks, too. */
  content?: string | (TextBlock | Attachment)[];
  /** The author's name; of a tool's result the tool's. */
  name?: string | null;
  /** The author besides the role: `rubric_grader` of feedback, `turn_limit` of the request to answer now. */
  source?: string | null;
  /** The tool calls of an answer of role `assistant`. */
  tool_calls?: ToolCall[];
  /** The id of the call that a message of role `tool` answers. */
  tool_call_id?: string | null;
  /** Parts that only the provider understands, such as signatures and encrypted reasoning; they are sent back to it unread. */
  vendor?: { [key: string]: JsonValue } | null;
  /** The model that wrote it, where that is a fallback of the one that was to. */
  model?: string | null;
  /** The type of the record that a judge is shown, for a part of a finished run that is neither a plain text nor a tool's. */
  kind?: "text" | "reasoning" | "tool_call" | "tool_result" | "file" | "error" | "other" | "finding" | null;
  /** Further fields of the record that a judge is shown: `is_error` of a tool's result, `media_type` of a file. */
  about?: { [key: string]: JsonValue } | null;
  /** Images and files of a user's message, each with its label in `content`; sent as blocks of `content`, they are written so. */
  attached?: Attachment[];
  /** True where graders are not shown it; an answer, which may be judged, cannot be hidden. */
  hidden?: boolean;
}

/** A criterion whose score counts in a named metric. */
export interface MetricShare {
  /** The metric, as the suite writes it. */
  name: string;
  /** The criterion's id. */
  criterion: string;
  /** The weight of the score in the metric. */
  weight?: number;
}

/** The settings of a model call; the provider's defaults hold for absent ones: `ModelConfig(temperature=0, max_tokens=500)`. */
export interface ModelConfig {
  /** Tokens of one completion; a reply that is cut there is asked for once more with four times as many. */
  max_tokens?: number | null;
  /** The sampling temperature, where the model takes one. */
  temperature?: number | null;
  /** The effort of a reasoning model, if it takes one. */
  reasoning_effort?: "none" | "minimal" | "low" | "medium" | "high" | "xhigh" | "max" | null;
  /** The thinking of a reasoning model; a number is its budget in tokens, if the model accepts one. */
  thinking?: "adaptive" | "between_tools" | "disabled" | number | null;
  /** The seed, where the provider takes one. */
  seed?: number | null;
  /** Whether the server enforces a JSON Schema; by default as the worker's table of models says. */
  structured_output?: boolean | null;
  /** Seconds that one call may take in all, and a stream be silent; the worker's own by default, an hour for models that are slow. */
  timeout?: number | null;
  /** Keys that are added to the request's body unchanged, for settings that have no field here. */
  extra?: { [key: string]: JsonValue };
  /** The base URL of an OpenAI-compatible server, which must be on the worker's allow-list. */
  base_url?: string | null;
}

/** A provider's model with settings and fallbacks: `ModelSpec(id="openai:gpt-5-mini", fallback=["anthropic:claude-haiku-4-5"])`. */
export interface ModelSpec {
  /** The model as `provider:model`. */
  id: string;
  /** The settings of its calls. */
  config?: ModelConfig;
  /** The models that are asked in this order after an outage, or where the model is not served; every call begins with the first again. */
  fallback?: FallbackModel[];
  /** Seconds from a call's first failure on after which the next model is asked; 60 by default. */
  fallback_after?: number | null;
  /** Whether the next model is asked also where one refuses the content. */
  on_refusal?: boolean;
}

export type ModelSpecInput = string | { id: string; config?: ModelConfig; fallback?: FallbackModelInput[]; fallback_after?: number | null; on_refusal?: boolean; };

/** The JSON that is posted to a webhook. */
export interface Notice {
  /** Equal for all deliveries of one notice; also the header `webhook-id`. */
  id: string;
  /** The event; `monitor.clear` ends an alert, `over_budget` stops a run or pauses a batch. */
  type: "thread.waiting" | "thread.over_budget" | "batch.ended" | "batch.over_budget" | "monitor.alert" | "monitor.clear";
  /** Time of the event: ISO 8601, UTC. */
  time: string;
  /** The subject: the beginning of the thread's task, or the batch's name. */
  title: string;
  /** The answer in one line, as the first line of a page has it. */
  answer: string;
  /** Id of the thread, which is its Temporal workflow's id. */
  thread_id?: string | null;
  /** Id of the grading run; null if nothing is graded. */
  grading_run_id?: string | null;
  /** The questions to a person, by their ids. */
  questions?: AskedOfPerson[];
  /** Id of the batch. */
  batch_id?: string | null;
  /** The number of a batch's cases by what became of them, and `total`. */
  counts?: { [key: string]: number };
  /** Name of the monitor. */
  monitor?: string | null;
  /** The ids of the newest failed runs of a monitor's sample. */
  runs?: string[];
  /** The page of the thread or the batch, where the settings name the address of the live pages. */
  url?: string | null;
  /** Texts of the notice, if the webhook's settings ask for them. */
  content?: NoticeContent | null;
}

/** Texts of a notice, which it has only if the webhook's settings say `content = true`. */
export interface NoticeContent {
  /** The criteria that a person decides, or the tools that the model wants to call. */
  questions?: string[];
  /** The beginning of the draft that is asked about. */
  draft?: string | null;
}

/** Anything else, kept as its JSON. */
export interface OtherPart {
  /** Always `other`. */
  type?: "other";
  /** The type by which the run names it. */
  kind: string;
  /** The part's JSON, as the run has it. */
  value?: JsonValue;
}

/** The form that a draft is asked to have: JSON, of a schema where one is given. */
export interface OutputForm {
  /** Name of the form, which the provider gets. */
  name?: string;
  /** The JSON Schema of the draft; without one it is any JSON object. */
  json_schema?: { [key: string]: JsonValue } | null;
  /** Whether the server enforces the schema, where it can enforce it more or less. */
  strict?: boolean;
}

/** A person's verdict that counts instead of the grader's, which stays beside it. */
export interface Override {
  /** The person's verdict. */
  passed: boolean;
  /** The person's reason. */
  why: string;
  /** The person's name, as it is recorded. */
  by: string;
  /** Time of the recording, ISO 8601, UTC. */
  time: string;
}

/** The argument of the update `override`: a person's verdict that counts instead of the grader's. */
export interface OverrideRequest {
  /** Id of the grading run. */
  grading_run_id: string;
  /** Iteration of the grading run, from 0. */
  iteration: number;
  /** Id of the criterion. */
  criterion: string;
  /** The person's verdict. */
  passed: boolean;
  /** The person's reason. */
  why: string;
  /** The person's name, as it is recorded. */
  by: string;
}

/** The author's own prompt: messages for the grader with slots for the rubric and the output. */
export interface OwnPrompt {
  /** Messages to the grader, in order. */
  messages: PromptMessage[];
}

export type OwnPromptInput = string | ({ role?: "system" | "user" | "assistant"; content: string; })[] | { messages: PromptMessage[]; };

/** A judge's finding about one part of a longer run. */
export interface PartFinding {
  /** The number of the part, from 1. */
  part: number;
  /** The first message of the part, `T0B0`; one at the run's beginning or end may stand in all parts. */
  first: string;
  /** The last message of the part, such as `T0B41`. */
  last: string;
  /** The judge's output, as JSON. */
  text: string;
}

/** Rule that passes a judgement, and the share that must pass, as given to the command that judged or shows them. */
export interface PassGate {
  /** The values that an output must have, by key; a dot leads into an object. */
  pass_if: { [key: string]: JsonValue };
  /** The share of judged runs, 0 to 1, that has to pass; None where no rate decides, or one that labels correct. */
  pass_rate?: number | null;
  /** The share of judgements, 0 to 1, that may be failures. */
  allow_errors?: number;
}

/** A tool call that waits for a person. */
export interface PendingCall {
  /** The id of the call, by which `approve` and `deny` name it. */
  call: string;
  /** Name of the tool. */
  tool: string;
  /** The arguments that the model wrote. */
  arguments: { [key: string]: JsonValue };
  /** The role that made the call. */
  role: "generator" | "grader" | "check";
}

/** Priority of calls if slots or a rate are short, in Temporal's own terms: `Priority(level=1, tenant="acme")`. */
export interface Priority {
  /** The priority level; 1 goes before 5. */
  level?: number;
  /** The tenant: it shares its level's capacity with others where the server has fairness enabled, and its cached verdicts with none. */
  tenant?: string | null;
  /** The tenant's weight beside the other tenants'. */
  weight?: number;
}

/** A message of the prompt, split at its slots; on the wire also `{role, content}`. */
export interface PromptMessage {
  /** Role of the author. */
  role?: "system" | "user" | "assistant";
  /** Texts and slots of the message, in order. */
  parts: (string | PromptSlot)[];
}

/** A place in a prompt that is filled when the prompt is sent. */
export interface PromptSlot {
  /** The value that fills the slot. */
  of: "rubric" | "output" | "transcript";
  /** Keys into a JSON draft (`{{ output.key }}`) or an object that describes the criterion (`{{ rubric.key }}`); empty for the whole. */
  path?: string[];
}

/** A message of a judge's prompt, with slots in braces. */
export interface PromptTemplate {
  /** Role of the author. */
  role: "system" | "user" | "assistant";
  /** Text with slots in braces, such as `{rubric}`; `{{` and `}}` stand for braces. */
  content: string;
}

/** A passage of the conversation that a grader gives as evidence. */
export interface Quote {
  /** The number of the record that is quoted. */
  record: number;
  /** The quoted text, word for word. */
  quote: string;
  /** Whether gradeloop found the quote in its record, word for word; a grader may not set it. */
  quote_verified?: boolean | null;
  /** The match of the quote with its record: verbatim, nearly (no evidence), or none; a grader may not set it. */
  quote_match?: "exact" | "near" | "none" | null;
  /** The passage of the record that a quote resembles which is nearly there, white space folded; None for any other quote. */
  quote_nearest?: string | null;
}

/** The word of one person about a case: `Rating(by="ann", passed=False, comment="It names no date.")`. */
export interface Rating {
  /** The person's name, as it is recorded. */
  by: string;
  /** The person's own verdict; None if it is only a comment. */
  passed?: boolean | null;
  /** The person's comment; empty without one. */
  comment?: string;
  /** The attempt of the case that it is about; it says nothing about the output of a later one. */
  attempt?: number;
  /** ISO 8601, UTC. */
  created?: string;
}

/** A model's thoughts before it spoke, or a summary of them. */
export interface ReasoningPart {
  /** Always `reasoning`. */
  type?: "reasoning";
  /** The thoughts; empty if the provider hid them. */
  text?: string;
  /** Whether the provider hid the reasoning, or a part of it. */
  redacted?: boolean;
}

/** A remote grader: an activity of another worker, in any language, or a function in the worker's tools. */
export interface RemoteGrader {
  /** The type of an activity that judges. */
  activity?: string | null;
  /** The task queue on which the activity is served. */
  task_queue?: string | null;
  /** The name of a function of the worker's tools. */
  function?: string | null;
}

/** A tool of another worker: its description for the model, and the task queue on which it is served. The activity takes `{call, operation_id, arguments, draft}` and returns text or any JSON. */
export interface RemoteTool {
  /** Its name for models and checks. */
  name: string;
  /** Its purpose, as the model reads it. */
  description: string;
  /** The JSON Schema of the arguments, of type `object`. */
  parameters?: { [key: string]: JsonValue };
  /** The type of the activity. */
  activity: string;
  /** The task queue on which it is served; a call fails after 60 s without a worker. */
  task_queue: string;
  /** Whether a person approves every call. */
  needs_approval?: boolean;
  /** Whether a call may run again after a failure; if not, it runs at most once, and the model is told where its outcome is unknown. */
  repeatable?: boolean;
}

/** An ordered list of criteria with unique ids, and how they add up: `Rubric(criteria=["polite", "short"], threshold=0.5)`. */
export interface Rubric {
  /** The name of the rubric, for reports. */
  name?: string | null;
  /** Instructions for the grader, in addition to its own. */
  instructions?: string | null;
  /** The score: the weighted mean of its units, or 1 where the gate passes and 0 where it does not. */
  scoring?: "mean" | "binary";
  /** The lowest score that meets the rubric, in addition to the gate. */
  threshold?: number | null;
  /** The criteria that must pass: all required ones (all, if none is required), one of them, or none. With `none`, a threshold decides. */
  gate?: "required" | "any" | "none";
  /** One call for all criteria that share grader, prompt and votes, or one call for each criterion. */
  mode?: "holistic" | "per_criterion";
  /** The language of verdicts and feedback: `en` by default, `de`, `fr` or `es`. */
  language?: string | null;
  /** The author's own sentences for feedback; those of the language by default. */
  feedback?: Feedback | null;
  /** The author's own prompt for the grader; gradeloop's by default. */
  prompt?: OwnPrompt | null;
  /** Whether graders see the criteria that tools decide, with their results; never in the form `pass_score`. */
  show_checks?: boolean;
  /** The groups that criteria belong to. */
  groups?: Group[];
  /** The criteria in order; none clears the rubric. On the wire also groups: `{"group": name, "criteria": [...]}`. */
  criteria: Criterion[];
  /** Headings and introductions between the criteria. */
  context?: Context[];
}

export type RubricInput = string | { name?: string | null; instructions?: string | null; scoring?: "mean" | "binary"; threshold?: number | null; gate?: "required" | "any" | "none"; mode?: "holistic" | "per_criterion"; language?: string | null; feedback?: Feedback | null; prompt?: OwnPromptInput | null; show_checks?: boolean; groups?: Group[]; criteria: (CriterionInput | { group: string; required?: boolean; weight?: number; threshold?: number; criteria: CriterionInput[]; })[]; context?: Context[]; };

/** The messages of a longer run that an excerpt holds, by their numbers there, and the findings about the run's parts. */
export interface RunExcerpt {
  /** The number of parts of the longer run. */
  parts: number;
  /** The number of this part, from 1; None for the messages that the findings on all parts cite. */
  part?: number | null;
  /** The number of each transcript in the longer run. */
  transcripts: number[];
  /** The numbers of each transcript's messages, ascending. */
  messages: number[][];
  /** Findings about the run's parts; only an excerpt that sums them up has any. */
  findings?: PartFinding[];
}

/** A message of a run, plain or as parts; absent fields stay out of its JSON: `RunMessage(role="user", content="Hi")`. */
export interface RunMessage {
  /** Role of the author. */
  role: "system" | "user" | "assistant" | "tool";
  /** Text of the message; empty if it has `parts`. */
  content?: string;
  /** The model's reasoning before its answer, where it was recorded. */
  reasoning?: string | null;
  /** Name of the author; of a tool's result, the tool's. */
  name?: string | null;
  /** Tool calls of an answer. */
  tool_calls?: ToolCall[];
  /** The id of the call that a message of role `tool` answers. */
  tool_call_id?: string | null;
  /** Whether a tool's result is an error. */
  is_error?: boolean;
  /** The parts in their order, where content, reasoning and tool calls cannot say it; then those are absent. */
  parts?: (TextPart | ReasoningPart | ToolCallPart | ToolResultPart | FilePart | ErrorPart | OtherPart)[];
  /** Data about it, as a JSON object; judges see it only if their configuration asks for it. */
  metadata?: { [key: string]: JsonValue };
}

/** The result of a thread's turn: `(await client.invoke("haiku-1", "Another one.")).output`. */
export interface RunResult {
  /** Id of the thread, which is its Temporal workflow's id. */
  thread_id: string;
  /** Id of the grading run; null if nothing is graded. */
  grading_run_id: string | null;
  /** The status of the grading run; None where no rubric was set, so that nothing was graded. */
  status: "running" | "waiting" | "interrupted" | "satisfied" | "max_iterations_reached" | "failed" | "grader_error" | "superseded" | null;
  /** The number of evaluations of the run. */
  iterations: number;
  /** The best draft: gate passed, then score, then required criteria passed, then the latest; while a person is asked, theirs or None. */
  output: string | null;
  /** The iteration of the best draft; None while the run waits for a person, as is `score`. */
  best_iteration: number | null;
  /** The last draft; None where it is the best one and larger than 128 KiB. */
  last_output: string | null;
  /** The score of the best draft, as in its evaluation. */
  score: number | null;
  /** Evaluations of this turn's run, the first iteration first. */
  evaluations: Evaluation[];
  /** This turn's messages; None above 128 KiB (page them with the query `messages`). */
  messages: Message[] | null;
  /** Whether `messages` was omitted because of its size. */
  messages_truncated: boolean;
  /** Tokens, calls, seconds and cost in US dollars. */
  usage: Usage;
  /** The failure that interrupted the run, and what to change. */
  error: string | null;
  /** The cause of an interruption; None for any other status, and if the workflow itself was cancelled or lost. */
  reason?: "person" | "budget" | "failure" | "outage" | null;
  /** The questions to a person; None for any status but `waiting`. */
  waiting_for?: WaitingFor | null;
  /** The last evaluation's result with people's overrides; None where there are none. */
  overridden_result?: "satisfied" | "needs_revision" | "failed" | null;
}

/** One conversation of a run: `RunTranscript(messages=(RunMessage(role="user", content="Hi"),))`. */
export interface RunTranscript {
  /** The id of the conversation; `t` and its position by default. */
  id?: string;
  /** Name of the conversation. */
  name?: string | null;
  /** Messages of the conversation, in order. */
  messages: RunMessage[];
  /** Data about it, as a JSON object; judges see it only if their configuration asks for it. */
  metadata?: { [key: string]: JsonValue };
}

/** The range of the number that a grader gives beside its verdict. */
export interface Scale {
  /** The worst score. */
  min: number;
  /** The best score. */
  max: number;
  /** The lowest score that passes; a lower one fails the criterion whatever the grader says. */
  threshold?: number | null;
}

/** A rubric in words, the schema of the answer, and how to ask. */
export interface SchemaJudge {
  /** The rubric's id; by default `rubric-` and the first digits of its sha256. */
  id?: string;
  /** Number of the judge's version, from 1. */
  version?: number;
  /** Name of the judge, for people. */
  name?: string | null;
  /** Question of the judge, and how it decides. */
  rubric_text: string;
  /** Shape of the answer; by default a label `match` or `no match`, and an explanation with citations. */
  output_schema?: { [key: string]: JsonValue };
  /** Messages with `{agent_run}`, `{rubric}`, `{output_schema}` and the tag; literal braces are doubled; one of gradeloop by default. */
  prompt_templates?: PromptTemplate[] | null;
  /** The model that judges; the worker's default grader if it is absent. */
  judge_model?: ModelSpecInput | null;
  /** Several models instead of one `judge_model`, each with `n_rollouts_per_input` rollouts. */
  panel?: ModelSpecInput[] | null;
  /** Form of the answer: between tags, or as the provider enforces it. */
  output_parsing_mode?: "XML_KEY" | "CONSTRAINED_DECODING";
  /** Name of the tags around the answer. */
  response_xml_key?: string;
  /** The format of the answer between the tags. */
  output_format?: "json" | "yaml";
  /** Number of answers to the same question. */
  n_rollouts_per_input?: number;
  /** Number of rollouts that must have a valid answer; by default more than half of them. */
  quorum?: number | null;
  /** Decision by the rollouts' majority, or by as many reflections on their answers. */
  judge_variant?: "majority" | "multi-reflect";
  /** Always one turn. */
  rollout_type?: "single_turn";
  /** Treatment of an answer with an unverified citation: `flag` keeps it, `fail` makes it invalid. */
  bad_citations?: "flag" | "fail";
  /** Whether every text with `citations: true` needs a verified citation. */
  require_citations?: boolean;
  /** Whether the judge sees the run's metadata, which may hold the expected answer. */
  show_metadata?: boolean;
  /** Least share of agreeing votes by key; a verdict with a smaller one is unsure. */
  abstain?: { [key: string]: number } | null;
  /** Model that is asked once about unsure verdicts. */
  escalate?: ModelSpecInput | null;
  /** The values that an output must have to pass, by key; by default nothing says what passes. */
  pass_if?: { [key: string]: boolean | number | string } | null;
}

/** The answer of the update `supply_rubric`. */
export interface SuppliedRubric {
  /** The rubric that judges from now on, with its variables filled in; None where nothing is graded any more. */
  rubric: Rubric | null;
  /** Sha256 of the rubric in its canonical form; null without a rubric. */
  rubric_sha256: string | null;
  /** False while it waits for the draft that is being written, or for the grading in flight to stop. */
  in_force: boolean;
  /** The run that is judged by it; None where that run is still to be opened. */
  grading_run_id: string | null;
  /** The run that it ends; None where no run was open, or that run goes on. */
  superseded: string | null;
}

/** A text between images and files. */
export interface TextBlock {
  /** Always `text`. */
  type: "text";
  /** The text. */
  text: string;
}

/** A text of the speaker. */
export interface TextPart {
  /** Always `text`. */
  type?: "text";
  /** The text. */
  text: string;
  /** Whether the model refuses by it, where its provider says so. */
  refusal?: boolean;
}

/** The one argument of the workflow `GradingThread`: `ThreadRequest(generator=Generator(model="openai:gpt-5-mini"))`. */
export interface ThreadRequest {
  /** The first turn, which ends with a message of the user; empty where an `invoke` follows at once. */
  messages?: MessageInput[];
  /** The rubric; absent or null keeps the sticky one, and `""` clears it. */
  rubric?: RubricInput | null;
  /** The drafter: a model, an activity or a workflow. */
  generator: Generator;
  /** The judge; the worker's default model if it is absent. */
  grader?: Grader | null;
  /** Most drafts of a run; the loop ends there even if the rubric is not met. */
  max_iterations?: number;
  /** Seconds that the thread stays open for further turns once its work is done. */
  idle_timeout?: number;
  /** The thread's budget; a run that reaches it is interrupted until it is resumed with a larger one. */
  budget?: Budget | null;
  /** Seconds for which a model call waits for a provider that is away, before the run is interrupted; the worker's own by default. */
  outage_timeout?: number | null;
  /** The priority of the thread's model and tool calls. */
  priority?: Priority | null;
  /** The values of `{{ name }}` in rubrics; without variables their text is literal. */
  vars?: { [key: string]: JsonValue } | null;
  /** The answer of the query `checkpoint`, with which a new thread continues an old one; that of an iteration begins a fork. */
  checkpoint?: { [key: string]: JsonValue } | null;
}

/** The answer of the query `state`: `(await client.state("haiku-1")).status`. */
export interface ThreadState {
  /** The status of the thread; `idle` between turns. */
  status: "idle" | "running" | "waiting" | "interrupted";
  /** Id of the grading run; null if nothing is graded. */
  grading_run_id: string | null;
  /** Phase of the run in flight; null if there is none. */
  phase: "generating" | "grading" | null;
  /** Iteration of the thread's run, from 0, also after its end; null if nothing is graded. */
  iteration: number | null;
  /** Criteria, and how they add up. */
  rubric: Rubric | null;
  /** Sha256 of the rubric in its canonical form; null without a rubric. */
  rubric_sha256: string | null;
  /** The usage of the whole thread. */
  usage: Usage;
  /** Limits on tokens and cost; by default there are none. */
  budget?: Budget | null;
  /** The cause of an interruption; None for any other status. */
  reason?: "person" | "budget" | "failure" | "outage" | null;
  /** The failure, and the change that it needs before the run is resumed; None where nothing failed. */
  error?: string | null;
  /** The number of turns that wait behind the current one. */
  queued: number;
  /** Questions to a person; null if none waits. */
  waiting_for: WaitingFor | null;
  /** The iteration that the thread was forked at. */
  forked_from?: ForkedFrom | null;
  /** The wait of the model call, as the typed client reads it from the server: `MODEL has not answered for 40 s; attempt 2`. */
  call_wait?: string | null;
  /** The end of the draft that is being written, as the typed client reads it from the server, where the provider streams. */
  draft?: string | null;
}

/** A tool call that a model asks for: `ToolCall(id="call-1", name="word_count", arguments={"maximum": 80})`. */
export interface ToolCall {
  /** The id of the call, which its result names. */
  id: string;
  /** Name of the tool. */
  name: string;
  /** Arguments of the call, as a JSON object. */
  arguments?: { [key: string]: JsonValue };
  /** The arguments as the model wrote them, where they are not a JSON object. */
  invalid?: string | null;
}

/** A call of a tool. */
export interface ToolCallPart {
  /** Always `tool_call`. */
  type?: "tool_call";
  /** The call's id, which its result has too. */
  call: string;
  /** Name of the tool. */
  name: string;
  /** Arguments of the call, as a JSON object. */
  arguments?: { [key: string]: JsonValue };
  /** The arguments as they were written, where they are not a JSON object: the input of a custom tool is any text. */
  invalid?: string | null;
}

/** The result of a tool. */
export interface ToolResultPart {
  /** Always `tool_result`. */
  type?: "tool_result";
  /** Id of the tool call. */
  call: string;
  /** Name of the tool, if the run records it. */
  name?: string | null;
  /** Output of the tool, as text. */
  text?: string;
  /** True if the tool failed. */
  is_error?: boolean;
}

/** The wish that a batch ends as soon as its answer is known: `UntilDecided(risk=0.05)`. */
export interface UntilDecided {
  /** The largest probability that asking all cases would say otherwise. */
  risk?: number;
  /** The seed of the random order in which the cases were uploaded, as far as it is known. */
  seed?: number | null;
  /** The values of a judge's output that pass a judgement, by key; by default a case passes as its rubric says. */
  pass_if?: { [key: string]: JsonValue } | null;
  /** The number of cases before all others: labels of them may measure the judge's error, or they may regress from a baseline. */
  first?: number;
}

/** The one argument of the workflow `StoreCases`: consecutive cases of a batch. */
export interface Upload {
  /** Id of the batch. */
  batch_id: string;
  /** The position of the first of these cases in the batch. */
  first: number;
  /** Cases in the batch's order. */
  cases: Case[];
}

/** Tokens, calls, seconds and cost, summed over the model calls that were recorded: `(await client.state("haiku-1")).usage.calls`. */
export interface Usage {
  /** Prompt tokens, the cached and the cache-written ones included; None where the server of some call does not report them. */
  input?: number | null;
  /** Prompt tokens that the provider read from its cache. */
  cached?: number;
  /** Prompt tokens that the provider wrote to its cache, where it says so. */
  cache_written?: number;
  /** Completion tokens, reasoning included; None where the server of some call does not report them. */
  output?: number | null;
  /** Completion tokens spent on reasoning. */
  reasoning?: number;
  /** Model calls that returned, malformed and refused replies included. */
  calls?: number;
  /** Requests that were sent, the failed ones included. */
  attempts?: number;
  /** The summed time in which a request was in flight. */
  seconds?: number;
  /** US dollars by the worker's price table; None where no call was made, or the price or the tokens of some call are unknown. */
  cost_usd?: number | null;
}

/** A grader's whole answer, with the result that its rows come to, or `failed` where it says that the rubric cannot be judged. */
export interface Verdict {
  /** Verdicts on the criteria that were asked. */
  criteria: VerdictRow[];
  /** The grader's summary. */
  explanation: string;
  /** Result of the rows; `failed` if the rubric cannot be judged. */
  result: "satisfied" | "needs_revision" | "failed";
  /** Ids of rows that nobody asked for, in quotes and shortened; a grader may not set it. */
  dropped?: string[];
}

/** A grader's verdict on one criterion. */
export interface VerdictRow {
  /** Id of the criterion. */
  id: string;
  /** The grader's reason, in a sentence or two. */
  reason: string;
  /** True if the criterion passes. */
  passed: boolean;
  /** The defect; None on a pass. */
  gap: string | null;
  /** The number on the criterion's own scale. */
  score?: number | null;
  /** Passages that the grader gives as evidence. */
  quotes?: Quote[] | null;
  /** Data that a remote grader returned beside its verdict. */
  metadata?: { [key: string]: JsonValue } | null;
}

/** The vote of one of several graders. */
export interface Vote {
  /** The model, activity or function that voted. */
  grader: string;
  /** The vote; None where the grader gave no verdict. */
  passed?: boolean | null;
  /** True where the grader was not asked, since no further vote could change the row. */
  unasked?: boolean;
  /** The model that was to vote, where the grader is its fallback. */
  instead_of?: string | null;
}

/** A criterion that waits for a person. */
export interface WaitingCriterion {
  /** Id of the criterion. */
  id: string;
  /** The criterion's description, as text. */
  name: string;
}

/** The criteria or calls that wait for a person, for `decide`, `approve` or `deny`: `(await client.state("haiku-1")).waiting_for`. */
export interface WaitingFor {
  /** The grading run; None where a generator without a rubric made the call. */
  grading_run_id: string | null;
  /** Iteration of the grading run, from 0; null if nothing is graded. */
  iteration: number | null;
  /** Criteria that wait for `decide`. */
  criteria: WaitingCriterion[];
  /** Tool calls that wait for `approve` or `deny`. */
  calls?: PendingCall[];
  /** The draft that is asked about, or that was being judged when the call was made; None where the generator made the call. */
  draft?: DraftInQuestion | null;
}
