// The wire contract of gradeloop (contract.md) as TypeScript.
// Generated from its JSON Schemas by `make docs`. What has a default is optional; a null counts as absent.

export type JsonValue = string | number | boolean | null | JsonValue[] | { [key: string]: JsonValue };

/** A finished run of an agent, in one conversation or several: `AgentRun(id="7", transcripts=(RunTranscript(messages=said),))`. */
export interface AgentRun {
  id: string;
  transcripts: RunTranscript[];
  metadata?: { [key: string]: JsonValue };
  excerpt?: RunExcerpt | null;
}

/** The argument of the update `approve`: a person allows a tool call. */
export interface ApproveRequest {
  call: string;
  by: string;
}

/** What a person is asked. */
export interface AskedOfPerson {
  kind: "criterion" | "call";
  id: string;
}

/** An image or a file, by its address or as a `data:` URL. */
export interface Attachment {
  type?: "image" | "file";
  url: string;
  detail?: "auto" | "low" | "high" | null;
}

/** The one argument of the workflow `GradingBatch`: `BatchRequest(batch_id="nightly", total=500)`; the cases are stored by then. */
export interface BatchRequest {
  batch_id: string;
  total: number;
  name?: string | null;
  suite?: string | null;
  at_once?: number;
  budget?: Budget | null;
  max_errors?: number | null;
  max_error_rate?: number;
  pass_rate?: number;
  allow_errors?: number;
  corrected?: GatedRate | null;
  asks?: boolean;
  derived_metrics?: DerivedMetric[];
  until_decided?: UntilDecided | null;
  decision?: EarlyAnswer | null;
  retries?: number;
  cache?: boolean;
  delay?: number;
  again?: "errors" | "invalid" | "failures" | null;
  cases?: string[];
  priority?: Priority;
}

/** The status, counts and usage of a batch: `(await batches.result("nightly")).passed`. */
export interface BatchSummary {
  batch_id: string;
  name?: string | null;
  suite?: string | null;
  tenant?: string | null;
  models?: string[];
  created: string;
  status: "running" | "paused" | "finished" | "stopped";
  reason?: string | null;
  total: number;
  passed?: number;
  failed?: number;
  unsure?: number;
  errors?: number;
  ungraded?: number;
  waiting?: number;
  cached?: number;
  usage?: Usage;
  budget?: Budget | null;
  pass_rate?: number;
  allow_errors?: number;
  corrected?: GatedRate | null;
  decision?: EarlyAnswer | null;
  asks?: boolean;
  derived_metrics?: DerivedMetric[];
  throttled?: number;
  throttled_by?: string | null;
}

/** The limits of a thread's model calls in total, checked before every call: `Budget(max_cost_usd=0.5)`. A model whose server does not report what its calls use is refused after its first call. */
export interface Budget {
  max_tokens?: number | null;
  max_cost_usd?: number | null;
}

/** A case of a batch: what is judged, or who drafts it, and by which rubric: `Case(id="a", output="Hi!", rubric="- polite")`. */
export interface Case {
  id: string;
  description?: string | null;
  vars?: { [key: string]: JsonValue };
  prompt?: string | null;
  label?: string | null;
  messages?: MessageInput[];
  images?: Attachment[];
  output?: string | null;
  generator?: Generator | null;
  rubric: RubricInput;
  grader?: Grader | null;
  abstain?: number | { [key: string]: number } | null;
  escalate?: ModelSpecInput | null;
  transforms?: CodeText[];
  repeat?: number;
  loop?: boolean;
  max_iterations?: number;
  judging?: JudgingRequest | null;
  asks_nothing?: boolean;
  compared_with?: string[];
  metrics?: MetricShare[];
  follows?: { [key: string]: string };
  left_out?: string[];
}

/** The result of a case; an error is never a verdict, neither passed nor failed: `CaseResult.rows()` has its criteria. */
export interface CaseResult {
  index: number;
  id: string;
  repeat?: number;
  description?: string | null;
  prompt?: string | null;
  label?: string | null;
  vars?: { [key: string]: JsonValue };
  status: "queued" | "waiting" | "passed" | "failed" | "unsure" | "error" | "ungraded";
  score?: number | null;
  output?: string | null;
  explanation?: string;
  criteria?: CriterionRow[];
  decided_by?: string[] | null;
  missed_threshold?: number | null;
  worst_criterion?: string | null;
  optional?: string[];
  unsure?: string[];
  escalated_from?: string | null;
  error?: string | null;
  metrics?: MetricShare[];
  left_out?: string[];
  usage?: Usage;
  cached?: boolean;
  grader?: string | null;
  attempt?: number;
  iterations?: number | null;
  thread_id?: string | null;
  judgement?: JudgeResult | null;
  finished?: string | null;
  ratings?: Rating[];
}

/** The tool that decides a criterion without a model. */
export interface Check {
  tool: string;
  extract?: "text" | "code";
  arguments?: { [key: string]: JsonValue };
  transform?: CodeText | null;
}

export type CheckInput = string | { tool: string; extract?: "text" | "code"; arguments?: { [key: string]: JsonValue }; transform?: CodeText | null; };

/** A text of Python or JavaScript that is run in the worker's sandbox. */
export interface CodeText {
  language: "javascript" | "python";
  code: string;
  file?: string;
  function?: string;
  config?: JsonValue;
  finds_context?: number;
}

/** A heading or an introduction among the criteria: the grader reads it, and nothing is judged by it. */
export interface Context {
  before: number;
  text: string;
}

/** A pass rate corrected for the judge's error, with its 95 % interval. */
export interface CorrectedRate {
  raw: number;
  value: number;
  low: number;
  high: number;
}

/** A rubric of criteria, and the grader that judges by it. */
export interface CriteriaJudge {
  id?: string;
  version?: number;
  rubric: RubricInput;
  grader?: Grader | null;
  abstain?: { [key: string]: number } | null;
  escalate?: ModelSpecInput | null;
}

/** One requirement of a rubric: what must hold, who decides it, its weight: `Criterion(description="polite", weight=2)`. */
export interface Criterion {
  id?: string;
  description: string | { [key: string]: JsonValue };
  required?: boolean;
  weight?: number;
  negate?: boolean;
  score?: Scale | null;
  check?: Check | null;
  human?: boolean;
  grader?: ModelSpec | RemoteGrader | null;
  votes?: number;
  panel?: (ModelSpec | RemoteGrader)[];
  quotes?: boolean;
  require_quotes?: boolean;
  prompt?: OwnPrompt | null;
  form?: "row" | "pass_score" | "similar";
  categories?: { [key: string]: number };
  transform?: CodeText | null;
  group?: string | null;
}

export type CriterionInput = string | { id?: string; description: string | { [key: string]: JsonValue }; required?: boolean; weight?: number; negate?: boolean; score?: Scale | null; check?: CheckInput | null; human?: boolean; grader?: ModelSpecInput | RemoteGrader | null; votes?: number; panel?: (ModelSpecInput | RemoteGrader)[]; quotes?: boolean; require_quotes?: boolean; prompt?: OwnPromptInput | null; form?: "row" | "pass_score" | "similar"; categories?: { [key: string]: number }; transform?: CodeText | null; group?: string | null; };

/** The verdict on one criterion: who decided, and why: `[row.gap for row in evaluation.criteria if not row.passed]`. */
export interface CriterionRow {
  id: string;
  name: string;
  passed: boolean;
  reason: string;
  gap?: string | null;
  unverified?: boolean;
  by?: "model" | "tool" | "human" | "cached" | "nobody";
  score?: number | null;
  contested?: boolean;
  votes?: Vote[];
  quotes?: Quote[];
  metadata?: { [key: string]: JsonValue } | null;
  grader?: string | null;
  instead_of?: string | null;
  override?: Override | null;
}

/** The argument of the update `decide`: a person's verdict on a criterion that waits for it. */
export interface DecideRequest {
  grading_run_id: string;
  iteration: number;
  criterion: string;
  passed: boolean;
  gap?: string | null;
  by: string;
}

/** A function that a model may call in its draft; nobody runs it, and the call is the draft. */
export interface DeclaredFunction {
  name: string;
  description?: string;
  parameters?: { [key: string]: JsonValue } | null;
  strict?: boolean;
}

/** The argument of the update `deny`: a person forbids a tool call. */
export interface DenyRequest {
  call: string;
  by: string;
  why: string;
}

/** A figure that is calculated from the named metrics of a batch. */
export interface DerivedMetric {
  name: string;
  value: string;
}

/** The draft about which a person is asked, with what checks and graders found in it. */
export interface DraftInQuestion {
  index: number;
  text: string | null;
  rows: CriterionRow[];
  previous?: number | null;
  changes?: DraftPiece[] | null;
}

/** A stretch of a comparison of two drafts. */
export interface DraftPiece {
  kind: "same" | "added" | "removed" | "left_out";
  text: string;
}

/** The answer of a gate that was known before all cases were asked: `EarlyAnswer(answer="passed", asked=81, risk=0.05, wanted=0.9)`. */
export interface EarlyAnswer {
  answer: "passed" | "failed";
  asked: number;
  risk: number;
  wanted: number;
}

/** An error that the run records beside what was said. */
export interface ErrorPart {
  type?: "error";
  name?: string | null;
  text: string;
}

/** One grading pass: result, rows, usage, and which draft was judged: `result.evaluations[-1].explanation`. */
export interface Evaluation {
  grading_run_id: string;
  iteration: number;
  result: "satisfied" | "needs_revision" | "failed" | "grader_error";
  status: "running" | "waiting" | "interrupted" | "satisfied" | "max_iterations_reached" | "failed" | "grader_error" | "superseded";
  explanation: string;
  criteria?: CriterionRow[];
  score?: number | null;
  unverified?: boolean;
  usage?: Usage;
  draft: number;
  grader?: string | null;
  rubric_sha256?: string | null;
  prompt_version?: string | null;
  notes?: string[];
  overridden_result?: "satisfied" | "needs_revision" | "failed" | null;
}

/** Something that happened in a thread, without its texts: `async for event in client.watch("haiku-1"): print(event.type)`. */
export interface Event {
  seq: number;
  type: "run_started" | "message" | "rubric_evaluation_start" | "rubric_evaluation_end" | "tool_called" | "run_ended" | "interrupted" | "resumed" | "rubric_supplied" | "rubric_rejected" | "waiting" | "decided" | "approved" | "denied" | "overridden" | "drafting";
  time: string;
  grading_run_id?: string | null;
  iteration?: number | null;
  index?: number | null;
  criterion?: string | null;
  call?: string | null;
  tool?: string | null;
  role?: "generator" | "grader" | "check" | null;
  why?: string | null;
  reason?: "person" | "budget" | "failure" | "outage" | null;
  result?: string | null;
  status?: "running" | "waiting" | "interrupted" | "satisfied" | "max_iterations_reached" | "failed" | "grader_error" | "superseded" | null;
  draft?: string | null;
}

/** A provider's model with its settings. */
export interface FallbackModel {
  id: string;
  config?: ModelConfig;
}

export type FallbackModelInput = string | { id: string; config?: ModelConfig; };

/** The author's own sentences for the feedback that the generator gets. */
export interface Feedback {
  opening?: string | null;
  failing?: string | null;
  unverified?: string | null;
  suggested?: string | null;
  remarks?: string | null;
  passing?: string | null;
  closing?: string | null;
}

/** An image, a sound, a document: what is known of it, and its text where it has one. */
export interface FilePart {
  type?: "file";
  name?: string | null;
  media_type?: string | null;
  url?: string | null;
  bytes?: number;
  text?: string;
}

/** A pass rate beside the one corrected for the judge's error, and what follows for a threshold. */
export interface GatedRate {
  passed: number;
  runs: number;
  worth?: [number, number, number];
  corrected: CorrectedRate | null;
  error: JudgeError;
  threshold: number | null;
  decision: "passed" | "failed" | "inconclusive" | null;
  wanted?: number | null;
}

/** The drafter, `Generator(model="openai:gpt-5-mini")`: a model, or an activity or workflow of another worker, in any language. */
export interface Generator {
  max_tool_calls?: number | null;
  max_turns?: number | null;
  model?: ModelSpecInput | null;
  activity?: string | null;
  workflow?: string | null;
  task_queue?: string | null;
  heartbeat_timeout?: number | null;
  system_prompt?: string | null;
  tools?: (string | RemoteTool)[];
  show_rubric?: boolean;
  functions?: DeclaredFunction[];
  function_choice?: string | null;
  shown_as?: "chat" | "function_call" | "responses" | "anthropic" | "bedrock" | "google" | null;
  output_form?: OutputForm | null;
}

/** The judge, `Grader(model="openai:gpt-5-mini")`: a model, an activity of another worker, or a function of the worker's tools. */
export interface Grader {
  max_tool_calls?: number | null;
  max_turns?: number | null;
  model?: ModelSpecInput | null;
  activity?: string | null;
  task_queue?: string | null;
  function?: string | null;
  system_prompt?: string | null;
  tools?: (string | RemoteTool)[];
  prompt?: "full" | "short" | null;
  hide?: HiddenMessages[];
}

/** A group of criteria that counts as one. */
export interface Group {
  group: string;
  required?: boolean;
  weight?: number;
  threshold?: number | null;
}

/** Messages that graders are not shown: those that have all that it names; answers, which may be judged, are never among them. */
export interface HiddenMessages {
  role?: "user" | "assistant" | "tool" | null;
  source?: string | null;
  name?: string | null;
}

/** The answer of the update `interrupt`, once the calls in flight have stopped. */
export interface Interruption {
  interrupted: boolean;
  grading_run_id: string | null;
  iteration: number | null;
  phase: "generating" | "grading" | null;
}

/** The argument of the update `invoke`: one turn of a thread. */
export interface InvokeRequest {
  messages?: MessageInput[];
  rubric?: RubricInput | null;
  max_iterations?: number | null;
  budget?: Budget | null;
  vars?: { [key: string]: JsonValue } | null;
  key?: string | null;
}

/** How often a judge was right where people said what holds: counts of labels. */
export interface JudgeError {
  passed: number;
  passed_found: number;
  failed: number;
  failed_found: number;
}

/** One judgement of one run; a `FAILURE` says nothing about the run: `(await judge(run)).output["label"]`. */
export interface JudgeResult {
  id: string;
  agent_run_id: string;
  rubric_id: string;
  rubric_version: number;
  output: { [key: string]: JsonValue };
  result_type: "DIRECT_RESULT" | "FAILURE";
  result_metadata?: { [key: string]: JsonValue };
  usage?: Usage;
  model?: string | null;
  attempts?: number;
  prompt_sha256?: string | null;
  judge_sha256?: string | null;
  run_sha256?: string | null;
  batch_id?: string | null;
  unsure?: string[];
  escalated_from?: string | null;
  passed?: boolean | null;
  gate?: PassGate | null;
}

/** The one argument of the workflow `Judging`. */
export interface JudgingRequest {
  judge: SchemaJudge | CriteriaJudge;
  run: AgentRun;
  repeat?: number;
  priority?: Priority | null;
}

/** One message of a conversation; absent fields stay out of its JSON: `Message(role="user", content="Write a haiku.")`. */
export interface Message {
  role: "user" | "assistant" | "tool";
  content?: string;
  name?: string | null;
  source?: string | null;
  tool_calls?: ToolCall[];
  tool_call_id?: string | null;
  vendor?: { [key: string]: JsonValue } | null;
  model?: string | null;
  kind?: "text" | "reasoning" | "tool_call" | "tool_result" | "file" | "error" | "other" | "finding" | null;
  about?: { [key: string]: JsonValue } | null;
  attached?: Attachment[];
  hidden?: boolean;
}

/** One message of a conversation; absent fields stay out of its JSON: `Message(role="user", content="Write a haiku.")`. */
export interface MessageInput {
  role: "user" | "assistant" | "tool";
  content?: string | (TextBlock | Attachment)[];
  name?: string | null;
  source?: string | null;
  tool_calls?: ToolCall[];
  tool_call_id?: string | null;
  vendor?: { [key: string]: JsonValue } | null;
  model?: string | null;
  kind?: "text" | "reasoning" | "tool_call" | "tool_result" | "file" | "error" | "other" | "finding" | null;
  about?: { [key: string]: JsonValue } | null;
  attached?: Attachment[];
  hidden?: boolean;
}

/** A criterion whose score counts in a named metric. */
export interface MetricShare {
  name: string;
  criterion: string;
  weight?: number;
}

/** The settings of a model call; the provider's defaults hold for absent ones: `ModelConfig(temperature=0, max_tokens=500)`. */
export interface ModelConfig {
  max_tokens?: number | null;
  temperature?: number | null;
  reasoning_effort?: "none" | "minimal" | "low" | "medium" | "high" | "xhigh" | "max" | null;
  thinking?: "adaptive" | "between_tools" | "disabled" | number | null;
  seed?: number | null;
  structured_output?: boolean | null;
  timeout?: number | null;
  extra?: { [key: string]: JsonValue };
  base_url?: string | null;
}

/** A provider's model with settings and fallbacks: `ModelSpec(id="openai:gpt-5-mini", fallback=["anthropic:claude-haiku-4-5"])`. */
export interface ModelSpec {
  id: string;
  config?: ModelConfig;
  fallback?: FallbackModel[];
  fallback_after?: number | null;
  on_refusal?: boolean;
}

export type ModelSpecInput = string | { id: string; config?: ModelConfig; fallback?: FallbackModelInput[]; fallback_after?: number | null; on_refusal?: boolean; };

/** The JSON that is posted to a webhook. */
export interface Notice {
  id: string;
  type: "thread.waiting" | "thread.over_budget" | "batch.ended" | "batch.over_budget" | "monitor.alert" | "monitor.clear";
  time: string;
  title: string;
  answer: string;
  thread_id?: string | null;
  grading_run_id?: string | null;
  questions?: AskedOfPerson[];
  batch_id?: string | null;
  counts?: { [key: string]: number };
  monitor?: string | null;
  runs?: string[];
  url?: string | null;
  content?: NoticeContent | null;
}

/** What stands in a notice only where the webhook's settings say `content = true`. */
export interface NoticeContent {
  questions?: string[];
  draft?: string | null;
}

/** Anything else, kept as its JSON. */
export interface OtherPart {
  type?: "other";
  kind: string;
  value?: JsonValue;
}

/** The form that a draft is asked to have: JSON, of a schema where one is given. */
export interface OutputForm {
  name?: string;
  json_schema?: { [key: string]: JsonValue } | null;
  strict?: boolean;
}

/** A person's verdict that counts instead of the grader's, which stays beside it. */
export interface Override {
  passed: boolean;
  why: string;
  by: string;
  time: string;
}

/** The argument of the update `override`: a person's verdict that counts instead of the grader's. */
export interface OverrideRequest {
  grading_run_id: string;
  iteration: number;
  criterion: string;
  passed: boolean;
  why: string;
  by: string;
}

/** The author's own prompt: messages for the grader with slots for the rubric and the output. */
export interface OwnPrompt {
  messages: PromptMessage[];
}

export type OwnPromptInput = string | ({ role?: "system" | "user" | "assistant"; content: string; })[] | { messages: PromptMessage[]; };

/** What a judge says of one part of a longer run. */
export interface PartFinding {
  part: number;
  first: string;
  last: string;
  text: string;
}

/** Rule that passes a judgement, and the share that must pass, as given to the command that judged or shows them. */
export interface PassGate {
  pass_if: { [key: string]: JsonValue };
  pass_rate?: number | null;
  allow_errors?: number;
}

/** A tool call that waits for a person. */
export interface PendingCall {
  call: string;
  tool: string;
  arguments: { [key: string]: JsonValue };
  role: "generator" | "grader" | "check";
}

/** Which calls go first where slots or a rate are short, in Temporal's own terms: `Priority(level=1, tenant="acme")`. */
export interface Priority {
  level?: number;
  tenant?: string | null;
  weight?: number;
}

/** A message of the prompt, split at its slots; on the wire also `{role, content}`. */
export interface PromptMessage {
  role?: "system" | "user" | "assistant";
  parts: (string | PromptSlot)[];
}

/** A place in a prompt that is filled when the prompt is sent. */
export interface PromptSlot {
  of: "rubric" | "output" | "transcript";
  path?: string[];
}

/** A message of a judge's prompt, with slots in braces. */
export interface PromptTemplate {
  role: "system" | "user" | "assistant";
  content: string;
}

/** A passage of the conversation that a grader gives as evidence. */
export interface Quote {
  record: number;
  quote: string;
  quote_verified?: boolean | null;
  quote_match?: "exact" | "near" | "none" | null;
  quote_nearest?: string | null;
}

/** The word of one person about a case: `Rating(by="ann", passed=False, comment="It names no date.")`. */
export interface Rating {
  by: string;
  passed?: boolean | null;
  comment?: string;
  attempt?: number;
  created?: string;
}

/** What a model thought before it spoke, or a summary of that. */
export interface ReasoningPart {
  type?: "reasoning";
  text?: string;
  redacted?: boolean;
}

/** A remote grader: an activity of another worker, in any language, or a function in the worker's tools. */
export interface RemoteGrader {
  activity?: string | null;
  task_queue?: string | null;
  function?: string | null;
}

/** A tool of another worker: its description for the model, and the task queue on which it is served. The activity takes `{call, operation_id, arguments, draft}` and returns text or any JSON. */
export interface RemoteTool {
  name: string;
  description: string;
  parameters?: { [key: string]: JsonValue };
  activity: string;
  task_queue: string;
  needs_approval?: boolean;
  repeatable?: boolean;
}

/** An ordered list of criteria with unique ids, and how they add up: `Rubric(criteria=["polite", "short"], threshold=0.5)`. */
export interface Rubric {
  name?: string | null;
  instructions?: string | null;
  scoring?: "mean" | "binary";
  threshold?: number | null;
  gate?: "required" | "any" | "none";
  mode?: "holistic" | "per_criterion";
  language?: string | null;
  feedback?: Feedback | null;
  prompt?: OwnPrompt | null;
  show_checks?: boolean;
  groups?: Group[];
  criteria: Criterion[];
  context?: Context[];
}

export type RubricInput = string | { name?: string | null; instructions?: string | null; scoring?: "mean" | "binary"; threshold?: number | null; gate?: "required" | "any" | "none"; mode?: "holistic" | "per_criterion"; language?: string | null; feedback?: Feedback | null; prompt?: OwnPromptInput | null; show_checks?: boolean; groups?: Group[]; criteria: (CriterionInput | { group: string; required?: boolean; weight?: number; threshold?: number; criteria: CriterionInput[]; })[]; context?: Context[]; };

/** Which messages of a longer run an excerpt holds, by their numbers there, and what was found in the parts of the run. */
export interface RunExcerpt {
  parts: number;
  part?: number | null;
  transcripts: number[];
  messages: number[][];
  findings?: PartFinding[];
}

/** A message of a run, plain or as parts; absent fields stay out of its JSON: `RunMessage(role="user", content="Hi")`. */
export interface RunMessage {
  role: "system" | "user" | "assistant" | "tool";
  content?: string;
  reasoning?: string | null;
  name?: string | null;
  tool_calls?: ToolCall[];
  tool_call_id?: string | null;
  is_error?: boolean;
  parts?: (TextPart | ReasoningPart | ToolCallPart | ToolResultPart | FilePart | ErrorPart | OtherPart)[];
  metadata?: { [key: string]: JsonValue };
}

/** The result of a thread's turn: `(await client.invoke("haiku-1", "Another one.")).output`. */
export interface RunResult {
  thread_id: string;
  grading_run_id: string | null;
  status: "running" | "waiting" | "interrupted" | "satisfied" | "max_iterations_reached" | "failed" | "grader_error" | "superseded" | null;
  iterations: number;
  output: string | null;
  best_iteration: number | null;
  last_output: string | null;
  score: number | null;
  evaluations: Evaluation[];
  messages: Message[] | null;
  messages_truncated: boolean;
  usage: Usage;
  error: string | null;
  reason?: "person" | "budget" | "failure" | "outage" | null;
  waiting_for?: WaitingFor | null;
  overridden_result?: "satisfied" | "needs_revision" | "failed" | null;
}

/** One conversation of a run: `RunTranscript(messages=(RunMessage(role="user", content="Hi"),))`. */
export interface RunTranscript {
  id?: string;
  name?: string | null;
  messages: RunMessage[];
  metadata?: { [key: string]: JsonValue };
}

/** The range of the number that a grader gives beside its verdict. */
export interface Scale {
  min: number;
  max: number;
  threshold?: number | null;
}

/** A rubric in words, the schema of the answer, and how to ask. */
export interface SchemaJudge {
  id?: string;
  version?: number;
  name?: string | null;
  rubric_text: string;
  output_schema?: { [key: string]: JsonValue };
  prompt_templates?: PromptTemplate[] | null;
  judge_model?: ModelSpecInput | null;
  panel?: ModelSpecInput[] | null;
  output_parsing_mode?: "XML_KEY" | "CONSTRAINED_DECODING";
  response_xml_key?: string;
  output_format?: "json" | "yaml";
  n_rollouts_per_input?: number;
  quorum?: number | null;
  judge_variant?: "majority" | "multi-reflect";
  rollout_type?: "single_turn";
  bad_citations?: "flag" | "fail";
  require_citations?: boolean;
  show_metadata?: boolean;
  abstain?: { [key: string]: number } | null;
  escalate?: ModelSpecInput | null;
  pass_if?: { [key: string]: boolean | number | string } | null;
}

/** The answer of the update `supply_rubric`. */
export interface SuppliedRubric {
  rubric: Rubric | null;
  rubric_sha256: string | null;
  in_force: boolean;
  grading_run_id: string | null;
  superseded: string | null;
}

/** A text between images and files. */
export interface TextBlock {
  type: "text";
  text: string;
}

/** What somebody says. */
export interface TextPart {
  type?: "text";
  text: string;
  refusal?: boolean;
}

/** The one argument of the workflow `GradingThread`: `ThreadRequest(generator=Generator(model="openai:gpt-5-mini"))`. */
export interface ThreadRequest {
  messages?: MessageInput[];
  rubric?: RubricInput | null;
  generator: Generator;
  grader?: Grader | null;
  max_iterations?: number;
  idle_timeout?: number;
  budget?: Budget | null;
  outage_timeout?: number | null;
  priority?: Priority | null;
  vars?: { [key: string]: JsonValue } | null;
  checkpoint?: { [key: string]: JsonValue } | null;
}

/** The answer of the query `state`: `(await client.state("haiku-1")).status`. */
export interface ThreadState {
  status: "idle" | "running" | "waiting" | "interrupted";
  grading_run_id: string | null;
  phase: "generating" | "grading" | null;
  iteration: number | null;
  rubric: Rubric | null;
  rubric_sha256: string | null;
  usage: Usage;
  budget?: Budget | null;
  reason?: "person" | "budget" | "failure" | "outage" | null;
  error?: string | null;
  queued: number;
  waiting_for: WaitingFor | null;
  call_wait?: string | null;
  draft?: string | null;
}

/** A tool call that a model asks for: `ToolCall(id="call-1", name="word_count", arguments={"maximum": 80})`. */
export interface ToolCall {
  id: string;
  name: string;
  arguments?: { [key: string]: JsonValue };
  invalid?: string | null;
}

/** A call of a tool. */
export interface ToolCallPart {
  type?: "tool_call";
  call: string;
  name: string;
  arguments?: { [key: string]: JsonValue };
  invalid?: string | null;
}

/** What a tool returned. */
export interface ToolResultPart {
  type?: "tool_result";
  call: string;
  name?: string | null;
  text?: string;
  is_error?: boolean;
}

/** The wish that a batch ends as soon as its answer is known: `UntilDecided(risk=0.05)`. */
export interface UntilDecided {
  risk?: number;
  seed?: number | null;
}

/** The one argument of the workflow `StoreCases`: consecutive cases of a batch. */
export interface Upload {
  batch_id: string;
  first: number;
  cases: Case[];
}

/** Tokens, calls, seconds and cost, summed over the model calls that were recorded: `(await client.state("haiku-1")).usage.calls`. */
export interface Usage {
  input?: number | null;
  cached?: number;
  cache_written?: number;
  output?: number | null;
  reasoning?: number;
  calls?: number;
  attempts?: number;
  seconds?: number;
  cost_usd?: number | null;
}

/** A grader's whole answer, with the result that its rows come to, or `failed` where it says that the rubric cannot be judged. */
export interface Verdict {
  criteria: VerdictRow[];
  explanation: string;
  result: "satisfied" | "needs_revision" | "failed";
  dropped?: string[];
}

/** A grader's verdict on one criterion. */
export interface VerdictRow {
  id: string;
  reason: string;
  passed: boolean;
  gap: string | null;
  score?: number | null;
  quotes?: Quote[] | null;
  metadata?: { [key: string]: JsonValue } | null;
}

/** The vote of one of several graders. */
export interface Vote {
  grader: string;
  passed: boolean | null;
  instead_of?: string | null;
}

/** A criterion that waits for a person. */
export interface WaitingCriterion {
  id: string;
  name: string;
}

/** The criteria or calls that wait for a person, for `decide`, `approve` or `deny`: `(await client.state("haiku-1")).waiting_for`. */
export interface WaitingFor {
  grading_run_id: string | null;
  iteration: number | null;
  criteria: WaitingCriterion[];
  calls?: PendingCall[];
  draft?: DraftInQuestion | null;
}
