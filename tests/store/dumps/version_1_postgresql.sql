CREATE TABLE public.batches (
    id character varying(200) NOT NULL,
    request text NOT NULL,
    status character varying(20) NOT NULL,
    reason text,
    total integer DEFAULT 0 NOT NULL,
    settled integer DEFAULT 0 NOT NULL,
    passed integer DEFAULT 0 NOT NULL,
    failed integer DEFAULT 0 NOT NULL,
    errors integer DEFAULT 0 NOT NULL,
    ungraded integer DEFAULT 0 NOT NULL,
    unsure integer DEFAULT 0 NOT NULL,
    reused integer DEFAULT 0 NOT NULL,
    throttled integer DEFAULT 0 NOT NULL,
    unpriced integer DEFAULT 0 NOT NULL,
    unreported integer DEFAULT 0 NOT NULL,
    input integer DEFAULT 0 NOT NULL,
    cached integer DEFAULT 0 NOT NULL,
    cache_written integer DEFAULT 0 NOT NULL,
    output integer DEFAULT 0 NOT NULL,
    reasoning integer DEFAULT 0 NOT NULL,
    calls integer DEFAULT 0 NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    seconds double precision DEFAULT '0'::double precision NOT NULL,
    cost_usd double precision DEFAULT '0'::double precision NOT NULL,
    throttled_by character varying(200),
    created timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.call_paces (
    model character varying(700) NOT NULL,
    turns bigint DEFAULT '0'::bigint NOT NULL,
    pace text NOT NULL
);
CREATE TABLE public.case_units (
    batch_id character varying(200) NOT NULL,
    "position" integer NOT NULL,
    attempt integer NOT NULL,
    unit integer NOT NULL,
    held text NOT NULL
);
CREATE TABLE public.cases (
    batch_id character varying(200) NOT NULL,
    "position" integer NOT NULL,
    case_id character varying(200) NOT NULL,
    spec text NOT NULL,
    plan character varying(200) NOT NULL,
    status character varying(20) NOT NULL,
    attempt integer DEFAULT 0 NOT NULL,
    fresh integer DEFAULT 0 NOT NULL,
    reused integer DEFAULT 0 NOT NULL,
    draft text,
    spent text,
    settled integer,
    result text
);
CREATE TABLE public.charges (
    call character varying(200) NOT NULL,
    attempt integer NOT NULL,
    batch_id character varying(200) NOT NULL,
    counted integer NOT NULL
);
CREATE TABLE public.judgements (
    id character varying(100) NOT NULL,
    judge_sha256 character varying(64) NOT NULL,
    agent_run_id character varying(200) NOT NULL,
    repeat integer NOT NULL,
    result_type character varying(20) NOT NULL,
    result text NOT NULL,
    created timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.monitor_alerts (
    monitor character varying(64) NOT NULL,
    number integer NOT NULL,
    kind character varying(100) NOT NULL,
    alert text NOT NULL,
    cleared integer,
    created timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.monitor_anchors (
    monitor character varying(64) NOT NULL,
    run_sha256 character varying(64) NOT NULL,
    run_id character varying(200) NOT NULL,
    label character varying(20) NOT NULL,
    spec text NOT NULL,
    first character varying(20),
    verdict character varying(20),
    judged integer,
    tick integer DEFAULT 0 NOT NULL,
    created timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.monitor_labels (
    monitor character varying(64) NOT NULL,
    run_sha256 character varying(64) NOT NULL,
    created_by character varying(200) NOT NULL,
    passed integer NOT NULL,
    reason text NOT NULL,
    created timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.monitor_runs (
    monitor character varying(64) NOT NULL,
    run_sha256 character varying(64) NOT NULL,
    run_id character varying(200) NOT NULL,
    number integer NOT NULL,
    why character varying(20) NOT NULL,
    stratum character varying(200),
    case_id character varying(200),
    verdict character varying(20),
    judged integer,
    waiting text,
    shadow_case character varying(200),
    shadow_verdict character varying(20),
    created timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.monitor_ticks (
    monitor character varying(64) NOT NULL,
    number integer NOT NULL,
    tick character varying(200) NOT NULL,
    batch_id character varying(200),
    request text,
    report text NOT NULL,
    settled integer DEFAULT 0 NOT NULL,
    created timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.monitors (
    name character varying(64) NOT NULL,
    definition text NOT NULL,
    state text NOT NULL,
    cursor text,
    created timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.received_runs (
    number integer NOT NULL,
    trace_id character varying(32) NOT NULL,
    run text,
    problem text,
    created timestamp with time zone DEFAULT now() NOT NULL
);
CREATE SEQUENCE public.received_runs_number_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.received_runs_number_seq OWNED BY public.received_runs.number;
CREATE TABLE public.received_spans (
    trace_id character varying(32) NOT NULL,
    span_id character varying(64) NOT NULL,
    ended bigint NOT NULL,
    span text NOT NULL,
    created timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.received_traces (
    trace_id character varying(32) NOT NULL,
    heard bigint NOT NULL,
    settled bigint,
    closed integer DEFAULT 0 NOT NULL,
    spans integer DEFAULT 0 NOT NULL,
    bytes integer DEFAULT 0 NOT NULL,
    created timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.rubric_versions (
    collection character varying(200) NOT NULL,
    rubric_id character varying(200) NOT NULL,
    version integer NOT NULL,
    sha256 character varying(64) NOT NULL,
    judge text NOT NULL,
    created timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.rubrics (
    collection character varying(200) NOT NULL,
    rubric_id character varying(200) NOT NULL,
    latest integer NOT NULL,
    created timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.store_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.tenant_days (
    tenant character varying(64) NOT NULL,
    day character varying(10) NOT NULL,
    tokens bigint DEFAULT '0'::bigint NOT NULL,
    cost_usd double precision DEFAULT '0'::double precision NOT NULL,
    calls integer DEFAULT 0 NOT NULL,
    unreported integer DEFAULT 0 NOT NULL,
    created timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.verdicts (
    key character varying(64) NOT NULL,
    verdict text NOT NULL,
    batch_id character varying(200),
    created timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE ONLY public.received_runs ALTER COLUMN number SET DEFAULT nextval('public.received_runs_number_seq'::regclass);
INSERT INTO public.batches VALUES ('kept-batch', '{"batch_id":"kept-batch","total":5,"name":null,"at_once":50,"budget":null,"max_errors":null,"max_error_rate":0.5,"pass_rate":0.5,"retries":7,"cache":true,"again":null,"priority":{"level":4,"tenant":null,"weight":1.0}}', 'finished', NULL, 5, 5, 3, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 14, 15, 0.012000000000000004, 0, NULL, '2026-11-26 14:49:59.653789+00');
INSERT INTO public.call_paces VALUES ('scripted  other', 1, '{"rate":null,"behind":0,"grown":0,"accepted":1,"refusals":[],"in_row":0,"cool_until":0.0,"next_at":0.0,"last_refused":0.0,"window_from":0.0,"window_accepted":0,"believes":null,"probe_at":null,"probing":false,"answered":0.0}');
INSERT INTO public.call_paces VALUES ('scripted  judge', 1, '{"rate":null,"behind":0,"grown":0,"accepted":1,"refusals":[],"in_row":0,"cool_until":0.0,"next_at":0.0,"last_refused":0.0,"window_from":0.0,"window_accepted":0,"believes":null,"probe_at":null,"probing":false,"answered":0.0}');
INSERT INTO public.call_paces VALUES ('scripted  writer', 1, '{"rate":null,"behind":0,"grown":0,"accepted":1,"refusals":[],"in_row":0,"cool_until":0.0,"next_at":0.0,"last_refused":0.0,"window_from":0.0,"window_accepted":0,"believes":null,"probe_at":null,"probing":false,"answered":0.0}');
INSERT INTO public.case_units VALUES ('kept-batch', 2, 0, 3, '{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.001,"cost_usd":0.0},"group":1}');
INSERT INTO public.case_units VALUES ('kept-batch', 0, 0, 3, '{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.0,"cost_usd":0.0},"group":1}');
INSERT INTO public.case_units VALUES ('kept-batch', 0, 0, 1, '{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.001,"cost_usd":0.0},"group":1}');
INSERT INTO public.case_units VALUES ('kept-batch', 1, 0, 1, '{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.001,"cost_usd":0.0},"group":1}');
INSERT INTO public.case_units VALUES ('kept-batch', 0, 0, 0, '{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c1","reason":"looked at c1","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:judge","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.001,"cost_usd":0.0},"group":0}');
INSERT INTO public.case_units VALUES ('kept-batch', 1, 0, 0, '{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c1","reason":"looked at c1","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:judge","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.001,"cost_usd":0.0},"group":0}');
INSERT INTO public.case_units VALUES ('kept-batch', 0, 0, 2, '{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.001,"cost_usd":0.0},"group":1}');
INSERT INTO public.case_units VALUES ('kept-batch', 2, 0, 0, '{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c1","reason":"looked at c1","passed":false,"gap":"it is not"}],"explanation":"so it is","result":"needs_revision"},"judge":"scripted:judge","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.001,"cost_usd":0.0},"group":0}');
INSERT INTO public.case_units VALUES ('kept-batch', 1, 0, 3, '{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.001,"cost_usd":0.0},"group":1}');
INSERT INTO public.case_units VALUES ('kept-batch', 1, 0, 2, '{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.001,"cost_usd":0.0},"group":1}');
INSERT INTO public.case_units VALUES ('kept-batch', 2, 0, 1, '{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.001,"cost_usd":0.0},"group":1}');
INSERT INTO public.case_units VALUES ('kept-batch', 2, 0, 2, '{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.001,"cost_usd":0.0},"group":1}');
INSERT INTO public.cases VALUES ('kept-batch', 0, 'c0', '{"id":"c0","output":"the output of c0.","rubric":{"criteria":[{"id":"c1","description":"it is good","required":true},{"id":"c2","description":"it is short","required":true,"grader":{"id":"scripted:other","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"votes":3}]},"grader":{"model":{"id":"scripted:judge","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"system_prompt":null,"tools":[]}}', '{"kind":"calls","drafted":false,"units":4}', 'passed', 0, 0, 0, NULL, NULL, 1, '{"index":0,"id":"c0","status":"passed","score":1.0,"output":"the output of c0.","explanation":"2 of 2 criteria pass.","criteria":[{"id":"c1","name":"it is good","passed":true,"reason":"looked at c1","by":"model"},{"id":"c2","name":"it is short","passed":true,"reason":"looked at c2","by":"model","votes":[{"grader":"scripted:other","passed":true},{"grader":"scripted:other","passed":true},{"grader":"scripted:other","passed":true}]}],"decided_by":[],"error":null,"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":4,"attempts":4,"seconds":0.003,"cost_usd":0.0},"cached":false,"grader":"scripted:judge","attempt":0,"finished":"2026-11-26T14:50:00.009+00:00"}');
INSERT INTO public.cases VALUES ('kept-batch', 1, 'c1', '{"id":"c1","output":"the output of c1.","rubric":{"criteria":[{"id":"c1","description":"it is good","required":true},{"id":"c2","description":"it is short","required":true,"grader":{"id":"scripted:other","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"votes":3}]},"grader":{"model":{"id":"scripted:judge","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"system_prompt":null,"tools":[]}}', '{"kind":"calls","drafted":false,"units":4}', 'passed', 0, 0, 0, NULL, NULL, 2, '{"index":1,"id":"c1","status":"passed","score":1.0,"output":"the output of c1.","explanation":"2 of 2 criteria pass.","criteria":[{"id":"c1","name":"it is good","passed":true,"reason":"looked at c1","by":"model"},{"id":"c2","name":"it is short","passed":true,"reason":"looked at c2","by":"model","votes":[{"grader":"scripted:other","passed":true},{"grader":"scripted:other","passed":true},{"grader":"scripted:other","passed":true}]}],"decided_by":[],"error":null,"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":4,"attempts":4,"seconds":0.004,"cost_usd":0.0},"cached":false,"grader":"scripted:judge","attempt":0,"finished":"2026-11-26T14:50:00.054+00:00"}');
INSERT INTO public.cases VALUES ('kept-batch', 3, 'c3', '{"id":"c3","output":"the output of c3.","rubric":{"criteria":[{"id":"c1","description":"it is good","required":true}]},"grader":{"model":{"id":"scripted:judge","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"system_prompt":null,"tools":[]}}', '{"kind":"calls","drafted":false,"units":1}', 'error', 0, 0, 0, NULL, NULL, 4, '{"index":3,"id":"c3","status":"error","score":null,"output":"the output of c3.","explanation":"auth: scripted:judge: as it was told to","criteria":[],"decided_by":[],"error":"auth: scripted:judge: as it was told to","usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":0,"attempts":1,"seconds":0.0,"cost_usd":null},"cached":false,"grader":null,"attempt":0,"finished":"2026-11-26T14:50:00.280+00:00"}');
INSERT INTO public.cases VALUES ('kept-batch', 4, 'd', '{"id":"d","messages":[{"role":"user","content":"Write d."}],"output":null,"generator":{"model":{"id":"scripted:writer","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"system_prompt":null,"tools":[],"show_rubric":false},"rubric":{"criteria":[{"id":"c1","description":"it is good","required":true}]},"grader":{"model":{"id":"scripted:judge","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"system_prompt":null,"tools":[]}}', '{"kind":"calls","drafted":true,"units":1}', 'passed', 0, 0, 0, '"A draft."', '{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.001,"cost_usd":0.0}', 5, '{"index":4,"id":"d","status":"passed","score":1.0,"output":"A draft.","explanation":"so it is","criteria":[{"id":"c1","name":"it is good","passed":true,"reason":"looked at c1","by":"model"}],"decided_by":[],"error":null,"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":2,"attempts":2,"seconds":0.001,"cost_usd":0.0},"cached":false,"grader":"scripted:judge","attempt":0,"finished":"2026-11-26T14:50:00.352+00:00"}');
INSERT INTO public.cases VALUES ('kept-batch', 2, 'c2', '{"id":"c2","output":"the output of c2.","rubric":{"criteria":[{"id":"c1","description":"it is good","required":true},{"id":"c2","description":"it is short","required":true,"grader":{"id":"scripted:other","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"votes":3}]},"grader":{"model":{"id":"scripted:judge","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"system_prompt":null,"tools":[]}}', '{"kind":"calls","drafted":false,"units":4}', 'failed', 0, 0, 0, NULL, NULL, 3, '{"index":2,"id":"c2","status":"failed","score":0.5,"output":"the output of c2.","explanation":"1 of 2 criteria pass. Not passed: c1.","criteria":[{"id":"c1","name":"it is good","passed":false,"reason":"looked at c1","gap":"it is not","by":"model"},{"id":"c2","name":"it is short","passed":true,"reason":"looked at c2","by":"model","votes":[{"grader":"scripted:other","passed":true},{"grader":"scripted:other","passed":true},{"grader":"scripted:other","passed":true}]}],"decided_by":["c1"],"worst_criterion":"c1","error":null,"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":4,"attempts":4,"seconds":0.004,"cost_usd":0.0},"cached":false,"grader":"scripted:judge","attempt":0,"finished":"2026-11-26T14:50:00.114+00:00"}');
INSERT INTO public.judgements VALUES ('judging-kept', 'ce310cc5366e070756dea08e4051a112e3116c4e2e1ce7cdd93496c8753294dc', 'paris', 0, 'DIRECT_RESULT', '{"id":"judging-kept","agent_run_id":"paris","rubric_id":"rubric-ce310cc5366e","rubric_version":1,"output":{"label":"match","explanation":"so"},"result_type":"DIRECT_RESULT","result_metadata":{},"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":0,"attempts":0,"seconds":0.0,"cost_usd":null},"model":null,"attempts":0,"prompt_sha256":null,"judge_sha256":"ce310cc5366e070756dea08e4051a112e3116c4e2e1ce7cdd93496c8753294dc","run_sha256":"fa68087ce6749e2ae3840bf5c8fbcd4337fd038e73abedfab620a756a54841d5"}', '2026-11-26 14:50:00.476136+00');
INSERT INTO public.rubric_versions VALUES ('reports', 'rubric-ce310cc5366e', 1, 'ce310cc5366e070756dea08e4051a112e3116c4e2e1ce7cdd93496c8753294dc', '{"id":"rubric-ce310cc5366e","version":1,"rubric_text":"The agent says that the capital of France is Paris.","output_schema":{"type":"object","properties":{"label":{"type":"string","enum":["match","no match"]},"explanation":{"type":"string","citations":true}},"required":["label","explanation"]},"judge_model":{"id":"scripted:judge","config":{}},"output_parsing_mode":"XML_KEY","response_xml_key":"response","output_format":"json","n_rollouts_per_input":1,"judge_variant":"majority","rollout_type":"single_turn"}', '2026-11-26 14:50:00.472125+00');
INSERT INTO public.rubrics VALUES ('reports', 'rubric-ce310cc5366e', 1, '2026-11-26 14:50:00.472125+00');
INSERT INTO public.store_version VALUES ('0001');
INSERT INTO public.verdicts VALUES ('e5b1bdcd0665a23d451f693ea5f354849a8be3e55558a379d7ab618f68d33cd4', '{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}', 'kept-batch', '2026-11-26 14:49:59.820505+00');
INSERT INTO public.verdicts VALUES ('b787baeb0c2f6e699b67dfc5bb370af5cfd97347cc6029e55e787ab4551d5ac4', '{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}', 'kept-batch', '2026-11-26 14:49:59.85614+00');
INSERT INTO public.verdicts VALUES ('ada09d5032a0a395028bceb5154d045ee933f89d215b2b65471a7ca4eff8e68f', '{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}', 'kept-batch', '2026-11-26 14:49:59.86231+00');
INSERT INTO public.verdicts VALUES ('40c336308952ff36eb676d081988a71dfc9b8e91455958dbb4fbd30ce9402d92', '{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}', 'kept-batch', '2026-11-26 14:49:59.86231+00');
INSERT INTO public.verdicts VALUES ('15a50c9c4c0d1ba06b392a5f61f18fdd046de3297429e3abf70fa13a3850ccf1', '{"criteria":[{"id":"c1","reason":"looked at c1","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}', 'kept-batch', '2026-11-26 14:49:59.86231+00');
INSERT INTO public.verdicts VALUES ('8db66992770c5cb51fd954905564b50bc5fdb523c6b4d57cf2223ae92856c81e', '{"criteria":[{"id":"c1","reason":"looked at c1","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}', 'kept-batch', '2026-11-26 14:49:59.989732+00');
INSERT INTO public.verdicts VALUES ('3eb3a0c5c52bef67c48907ccd8be165825883a847b5d1f834450f8992d9b7a96', '{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}', 'kept-batch', '2026-11-26 14:49:59.989732+00');
INSERT INTO public.verdicts VALUES ('d5a7d90303a67356d12e2c1ef25e1c11f2e9f23bdbc0fef431ca4f8debd90c12', '{"criteria":[{"id":"c1","reason":"looked at c1","passed":false,"gap":"it is not"}],"explanation":"so it is","result":"needs_revision"}', 'kept-batch', '2026-11-26 14:50:00.035435+00');
INSERT INTO public.verdicts VALUES ('250296c51b7e048ffa115dca541a3193d00c6590982597dc7c5dee5fc35f0953', '{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}', 'kept-batch', '2026-11-26 14:50:00.035435+00');
INSERT INTO public.verdicts VALUES ('8af3c5bf6b0764b5fca6cb55017978fd80c1985f499817354b05b48d0cf904fb', '{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}', 'kept-batch', '2026-11-26 14:50:00.035435+00');
INSERT INTO public.verdicts VALUES ('c2d1b6007e88dfbbcd14a42d00d973576941d2e72e6204203ae96463ce4f3cee', '{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}', 'kept-batch', '2026-11-26 14:50:00.093705+00');
INSERT INTO public.verdicts VALUES ('396f5ff747cd715a7fd6299c49a42153edfbdcde5a0dd7caa7e9a134a7d4bc91', '{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}', 'kept-batch', '2026-11-26 14:50:00.093705+00');
INSERT INTO public.verdicts VALUES ('6d481b5452e4f631bf61693ed5592dad0794727ba264d8d8a97b674478e94041', '{"criteria":[{"id":"c1","reason":"looked at c1","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}', 'kept-batch', '2026-11-26 14:50:00.361041+00');
SELECT pg_catalog.setval('public.received_runs_number_seq', 1, false);
ALTER TABLE ONLY public.batches
    ADD CONSTRAINT batches_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.call_paces
    ADD CONSTRAINT call_paces_pkey PRIMARY KEY (model);
ALTER TABLE ONLY public.case_units
    ADD CONSTRAINT case_units_pkey PRIMARY KEY (batch_id, "position", attempt, unit);
ALTER TABLE ONLY public.cases
    ADD CONSTRAINT cases_batch_id_case_id_key UNIQUE (batch_id, case_id);
ALTER TABLE ONLY public.cases
    ADD CONSTRAINT cases_pkey PRIMARY KEY (batch_id, "position");
ALTER TABLE ONLY public.charges
    ADD CONSTRAINT charges_pkey PRIMARY KEY (call, attempt);
ALTER TABLE ONLY public.judgements
    ADD CONSTRAINT judgements_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.monitor_alerts
    ADD CONSTRAINT monitor_alerts_pkey PRIMARY KEY (monitor, number, kind);
ALTER TABLE ONLY public.monitor_anchors
    ADD CONSTRAINT monitor_anchors_pkey PRIMARY KEY (monitor, run_sha256);
ALTER TABLE ONLY public.monitor_labels
    ADD CONSTRAINT monitor_labels_pkey PRIMARY KEY (monitor, run_sha256, created_by);
ALTER TABLE ONLY public.monitor_runs
    ADD CONSTRAINT monitor_runs_pkey PRIMARY KEY (monitor, run_sha256);
ALTER TABLE ONLY public.monitor_ticks
    ADD CONSTRAINT monitor_ticks_pkey PRIMARY KEY (monitor, number);
ALTER TABLE ONLY public.monitors
    ADD CONSTRAINT monitors_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.received_runs
    ADD CONSTRAINT received_runs_pkey PRIMARY KEY (number);
ALTER TABLE ONLY public.received_runs
    ADD CONSTRAINT received_runs_trace_id_key UNIQUE (trace_id);
ALTER TABLE ONLY public.received_spans
    ADD CONSTRAINT received_spans_pkey PRIMARY KEY (trace_id, span_id);
ALTER TABLE ONLY public.received_traces
    ADD CONSTRAINT received_traces_pkey PRIMARY KEY (trace_id);
ALTER TABLE ONLY public.rubric_versions
    ADD CONSTRAINT rubric_versions_pkey PRIMARY KEY (collection, rubric_id, version);
ALTER TABLE ONLY public.rubrics
    ADD CONSTRAINT rubrics_pkey PRIMARY KEY (collection, rubric_id);
ALTER TABLE ONLY public.store_version
    ADD CONSTRAINT store_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.tenant_days
    ADD CONSTRAINT tenant_days_pkey PRIMARY KEY (tenant, day);
ALTER TABLE ONLY public.verdicts
    ADD CONSTRAINT verdicts_pkey PRIMARY KEY (key);
CREATE INDEX cases_by_end ON public.cases USING btree (batch_id, settled);
CREATE INDEX ix_charges_batch_id ON public.charges USING btree (batch_id);
CREATE INDEX ix_judgements_agent_run_id ON public.judgements USING btree (agent_run_id);
CREATE INDEX ix_judgements_judge_sha256 ON public.judgements USING btree (judge_sha256);
CREATE INDEX monitor_runs_by_judged ON public.monitor_runs USING btree (monitor, judged);
CREATE INDEX monitor_runs_by_tick ON public.monitor_runs USING btree (monitor, number);
CREATE UNIQUE INDEX monitor_ticks_by_tick ON public.monitor_ticks USING btree (monitor, tick);
CREATE INDEX received_traces_by_silence ON public.received_traces USING btree (settled, heard);
ALTER TABLE ONLY public.rubric_versions
    ADD CONSTRAINT rubric_versions_collection_rubric_id_fkey FOREIGN KEY (collection, rubric_id) REFERENCES public.rubrics(collection, rubric_id);
