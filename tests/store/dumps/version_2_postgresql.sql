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
    reused integer DEFAULT 0 NOT NULL,
    throttled integer DEFAULT 0 NOT NULL,
    unpriced integer DEFAULT 0 NOT NULL,
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
CREATE TABLE public.judgements (
    id character varying(100) NOT NULL,
    judge_sha256 character varying(64) NOT NULL,
    agent_run_id character varying(200) NOT NULL,
    repeat integer NOT NULL,
    result_type character varying(20) NOT NULL,
    result text NOT NULL,
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
CREATE TABLE public.schema_version (
    version integer NOT NULL
);
CREATE SEQUENCE public.schema_version_version_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.schema_version_version_seq OWNED BY public.schema_version.version;
CREATE TABLE public.verdicts (
    key character varying(64) NOT NULL,
    verdict text NOT NULL,
    created timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE ONLY public.schema_version ALTER COLUMN version SET DEFAULT nextval('public.schema_version_version_seq'::regclass);
INSERT INTO public.batches VALUES ('kept-batch', '{"batch_id":"kept-batch","total":5,"name":null,"at_once":50,"budget":null,"max_errors":null,"max_error_rate":0.5,"pass_rate":0.5,"retries":7,"cache":true,"again":null,"priority":{"level":4,"tenant":null,"weight":1.0}}', 'finished', NULL, 5, 5, 3, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 14, 15, 0, 0, NULL, '2026-11-22 20:43:06.001992+00');
INSERT INTO public.case_units VALUES ('kept-batch', 0, 0, 0, '{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c1","reason":"looked at c1","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:judge","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.0,"cost_usd":0.0}}');
INSERT INTO public.case_units VALUES ('kept-batch', 0, 0, 1, '{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.0,"cost_usd":0.0}}');
INSERT INTO public.case_units VALUES ('kept-batch', 2, 0, 2, '{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.0,"cost_usd":0.0}}');
INSERT INTO public.case_units VALUES ('kept-batch', 2, 0, 3, '{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.0,"cost_usd":0.0}}');
INSERT INTO public.case_units VALUES ('kept-batch', 0, 0, 3, '{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.0,"cost_usd":0.0}}');
INSERT INTO public.case_units VALUES ('kept-batch', 0, 0, 2, '{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.0,"cost_usd":0.0}}');
INSERT INTO public.case_units VALUES ('kept-batch', 1, 0, 0, '{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c1","reason":"looked at c1","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:judge","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.0,"cost_usd":0.0}}');
INSERT INTO public.case_units VALUES ('kept-batch', 1, 0, 2, '{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.0,"cost_usd":0.0}}');
INSERT INTO public.case_units VALUES ('kept-batch', 2, 0, 0, '{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c1","reason":"looked at c1","passed":false,"gap":"it is not"}],"explanation":"so it is","result":"needs_revision"},"judge":"scripted:judge","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.0,"cost_usd":0.0}}');
INSERT INTO public.case_units VALUES ('kept-batch', 1, 0, 3, '{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.0,"cost_usd":0.0}}');
INSERT INTO public.case_units VALUES ('kept-batch', 1, 0, 1, '{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.0,"cost_usd":0.0}}');
INSERT INTO public.case_units VALUES ('kept-batch', 2, 0, 1, '{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.0,"cost_usd":0.0}}');
INSERT INTO public.cases VALUES ('kept-batch', 2, 'c2', '{"id":"c2","output":"the output of c2.","rubric":{"criteria":[{"id":"c1","description":"it is good","required":true},{"id":"c2","description":"it is short","required":true,"grader":{"id":"scripted:other","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"votes":3}]},"grader":{"model":{"id":"scripted:judge","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"system_prompt":null,"tools":[]}}', '{"kind":"calls","drafted":false,"units":4}', 'failed', 0, 0, 0, NULL, NULL, 4, '{"index":2,"id":"c2","status":"failed","score":0.5,"output":"the output of c2.","explanation":"1 of 2 criteria pass. Not passed: c1.","criteria":[{"id":"c1","name":"it is good","passed":false,"reason":"looked at c1","gap":"it is not","by":"model"},{"id":"c2","name":"it is short","passed":true,"reason":"looked at c2","by":"model","votes":[{"grader":"scripted:other","passed":true},{"grader":"scripted:other","passed":true},{"grader":"scripted:other","passed":true}]}],"error":null,"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":4,"attempts":4,"seconds":0.0,"cost_usd":0.0},"cached":false,"grader":"scripted:judge","attempt":0,"finished":"2026-11-22T20:43:06.409+00:00"}');
INSERT INTO public.cases VALUES ('kept-batch', 0, 'c0', '{"id":"c0","output":"the output of c0.","rubric":{"criteria":[{"id":"c1","description":"it is good","required":true},{"id":"c2","description":"it is short","required":true,"grader":{"id":"scripted:other","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"votes":3}]},"grader":{"model":{"id":"scripted:judge","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"system_prompt":null,"tools":[]}}', '{"kind":"calls","drafted":false,"units":4}', 'passed', 0, 0, 0, NULL, NULL, 1, '{"index":0,"id":"c0","status":"passed","score":1.0,"output":"the output of c0.","explanation":"2 of 2 criteria pass.","criteria":[{"id":"c1","name":"it is good","passed":true,"reason":"looked at c1","by":"model"},{"id":"c2","name":"it is short","passed":true,"reason":"looked at c2","by":"model","votes":[{"grader":"scripted:other","passed":true},{"grader":"scripted:other","passed":true},{"grader":"scripted:other","passed":true}]}],"error":null,"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":4,"attempts":4,"seconds":0.0,"cost_usd":0.0},"cached":false,"grader":"scripted:judge","attempt":0,"finished":"2026-11-22T20:43:06.265+00:00"}');
INSERT INTO public.cases VALUES ('kept-batch', 4, 'd', '{"id":"d","messages":[{"role":"user","content":"Write d."}],"output":null,"generator":{"model":{"id":"scripted:writer","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"system_prompt":null,"tools":[],"show_rubric":false},"rubric":{"criteria":[{"id":"c1","description":"it is good","required":true}]},"grader":{"model":{"id":"scripted:judge","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"system_prompt":null,"tools":[]}}', '{"kind":"calls","drafted":true,"units":1}', 'passed', 0, 0, 0, '"a draft"', '{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.0,"cost_usd":0.0}', 2, '{"index":4,"id":"d","status":"passed","score":1.0,"output":"a draft","explanation":"so it is","criteria":[{"id":"c1","name":"it is good","passed":true,"reason":"looked at c1","by":"model"}],"error":null,"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":2,"attempts":2,"seconds":0.0,"cost_usd":0.0},"cached":false,"grader":"scripted:judge","attempt":0,"finished":"2026-11-22T20:43:06.347+00:00"}');
INSERT INTO public.cases VALUES ('kept-batch', 3, 'c3', '{"id":"c3","output":"the output of c3.","rubric":{"criteria":[{"id":"c1","description":"it is good","required":true}]},"grader":{"model":{"id":"scripted:judge","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"system_prompt":null,"tools":[]}}', '{"kind":"calls","drafted":false,"units":1}', 'error', 0, 0, 0, NULL, NULL, 5, '{"index":3,"id":"c3","status":"error","score":null,"output":"the output of c3.","explanation":"auth: scripted:judge: as it was told to","criteria":[],"error":"auth: scripted:judge: as it was told to","usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":0,"attempts":1,"seconds":0.0,"cost_usd":null},"cached":false,"grader":null,"attempt":0,"finished":"2026-11-22T20:43:06.447+00:00"}');
INSERT INTO public.cases VALUES ('kept-batch', 1, 'c1', '{"id":"c1","output":"the output of c1.","rubric":{"criteria":[{"id":"c1","description":"it is good","required":true},{"id":"c2","description":"it is short","required":true,"grader":{"id":"scripted:other","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"votes":3}]},"grader":{"model":{"id":"scripted:judge","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"system_prompt":null,"tools":[]}}', '{"kind":"calls","drafted":false,"units":4}', 'passed', 0, 0, 0, NULL, NULL, 3, '{"index":1,"id":"c1","status":"passed","score":1.0,"output":"the output of c1.","explanation":"2 of 2 criteria pass.","criteria":[{"id":"c1","name":"it is good","passed":true,"reason":"looked at c1","by":"model"},{"id":"c2","name":"it is short","passed":true,"reason":"looked at c2","by":"model","votes":[{"grader":"scripted:other","passed":true},{"grader":"scripted:other","passed":true},{"grader":"scripted:other","passed":true}]}],"error":null,"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":4,"attempts":4,"seconds":0.0,"cost_usd":0.0},"cached":false,"grader":"scripted:judge","attempt":0,"finished":"2026-11-22T20:43:06.371+00:00"}');
INSERT INTO public.rubric_versions VALUES ('reports', 'rubric-42cd180edc70', 1, '42cd180edc70e4edd085452c26210e5f95bb27d68e4ca28a90b6e332c18c0a5d', '{"id":"rubric-42cd180edc70","version":1,"rubric":{"criteria":[{"id":"c1","description":"it is good","required":true}]}}', '2026-11-22 20:43:06.620828+00');
INSERT INTO public.rubrics VALUES ('reports', 'rubric-42cd180edc70', 1, '2026-11-22 20:43:06.620828+00');
INSERT INTO public.schema_version VALUES (2);
INSERT INTO public.verdicts VALUES ('4328525e2d78c1bec4d0bb461eecc1b182ec386a403b33ee05d9116cec81d649', '{"criteria":[{"id":"c1","reason":"looked at c1","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}', '2026-11-22 20:43:06.153144+00');
INSERT INTO public.verdicts VALUES ('b0f8890ad8eff7e49198710dfa3355bae7981a01877f45afdc3b8a4a47522c89', '{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}', '2026-11-22 20:43:06.158114+00');
INSERT INTO public.verdicts VALUES ('a7b0e55dbbc6a7921f914bf8fad2b5d4ab2ef36a3644f89e833afd1ea3313386', '{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}', '2026-11-22 20:43:06.200943+00');
INSERT INTO public.verdicts VALUES ('39dd3afc916525993e4afed802124ba4ff1633488ca0df2650563b1b552649f1', '{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}', '2026-11-22 20:43:06.210014+00');
INSERT INTO public.verdicts VALUES ('11be8fb1438859a66b24025481e8d17eea35f244461789b6b131123a89ec6de8', '{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}', '2026-11-22 20:43:06.228637+00');
INSERT INTO public.verdicts VALUES ('30bba137fe3ae355b73cbd97799aecea327fb43203cd71108ad97207fddd47ba', '{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}', '2026-11-22 20:43:06.2602+00');
INSERT INTO public.verdicts VALUES ('5255276f38723135d4ee19d6da95960c2da70be78333be343a8d1fcdb2ae209c', '{"criteria":[{"id":"c1","reason":"looked at c1","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}', '2026-11-22 20:43:06.271571+00');
INSERT INTO public.verdicts VALUES ('bf4f20bf0aeddd7be4e2095932bb5beea41012c080dfff6d083279e10ccb1fea', '{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}', '2026-11-22 20:43:06.319163+00');
INSERT INTO public.verdicts VALUES ('f64a1ad159eca30b1824ce8cca300cec6669975964af3ec4afa431b53389543c', '{"criteria":[{"id":"c1","reason":"looked at c1","passed":false,"gap":"it is not"}],"explanation":"so it is","result":"needs_revision"}', '2026-11-22 20:43:06.324379+00');
INSERT INTO public.verdicts VALUES ('7bd6c22624af12332f5b8bd13a6a10786137fc6556245a2cb8888a39e15e0740', '{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}', '2026-11-22 20:43:06.333044+00');
INSERT INTO public.verdicts VALUES ('63817909b3f0602fdcfc6860a53e5968b75bafda7427f373f578638a3ef6976c', '{"criteria":[{"id":"c1","reason":"looked at c1","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}', '2026-11-22 20:43:06.348253+00');
INSERT INTO public.verdicts VALUES ('f3bee91e483c0437dca4962c2ff5651f9a04d9aed76eced3311b94bfa4955b75', '{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}', '2026-11-22 20:43:06.36688+00');
INSERT INTO public.verdicts VALUES ('291ddd3f4aa24e624a4925b2b71cb97e4c2e2bec8d836934bde09565b978625f', '{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}', '2026-11-22 20:43:06.405377+00');
SELECT pg_catalog.setval('public.schema_version_version_seq', 1, false);
ALTER TABLE ONLY public.batches
    ADD CONSTRAINT batches_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.case_units
    ADD CONSTRAINT case_units_pkey PRIMARY KEY (batch_id, "position", attempt, unit);
ALTER TABLE ONLY public.cases
    ADD CONSTRAINT cases_batch_id_case_id_key UNIQUE (batch_id, case_id);
ALTER TABLE ONLY public.cases
    ADD CONSTRAINT cases_pkey PRIMARY KEY (batch_id, "position");
ALTER TABLE ONLY public.judgements
    ADD CONSTRAINT judgements_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.rubric_versions
    ADD CONSTRAINT rubric_versions_pkey PRIMARY KEY (collection, rubric_id, version);
ALTER TABLE ONLY public.rubrics
    ADD CONSTRAINT rubrics_pkey PRIMARY KEY (collection, rubric_id);
ALTER TABLE ONLY public.schema_version
    ADD CONSTRAINT schema_version_pkey PRIMARY KEY (version);
ALTER TABLE ONLY public.verdicts
    ADD CONSTRAINT verdicts_pkey PRIMARY KEY (key);
CREATE INDEX cases_by_end ON public.cases USING btree (batch_id, settled);
CREATE INDEX ix_judgements_agent_run_id ON public.judgements USING btree (agent_run_id);
CREATE INDEX ix_judgements_judge_sha256 ON public.judgements USING btree (judge_sha256);
ALTER TABLE ONLY public.rubric_versions
    ADD CONSTRAINT rubric_versions_collection_rubric_id_fkey FOREIGN KEY (collection, rubric_id) REFERENCES public.rubrics(collection, rubric_id);
