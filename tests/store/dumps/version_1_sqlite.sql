BEGIN TRANSACTION;
CREATE TABLE batches (
	id VARCHAR(200) NOT NULL, 
	request TEXT NOT NULL, 
	status VARCHAR(20) NOT NULL, 
	reason TEXT, 
	total INTEGER DEFAULT '0' NOT NULL, 
	settled INTEGER DEFAULT '0' NOT NULL, 
	passed INTEGER DEFAULT '0' NOT NULL, 
	failed INTEGER DEFAULT '0' NOT NULL, 
	errors INTEGER DEFAULT '0' NOT NULL, 
	ungraded INTEGER DEFAULT '0' NOT NULL, 
	unsure INTEGER DEFAULT '0' NOT NULL, 
	reused INTEGER DEFAULT '0' NOT NULL, 
	throttled INTEGER DEFAULT '0' NOT NULL, 
	unpriced INTEGER DEFAULT '0' NOT NULL, 
	unreported INTEGER DEFAULT '0' NOT NULL, 
	input INTEGER DEFAULT '0' NOT NULL, 
	cached INTEGER DEFAULT '0' NOT NULL, 
	cache_written INTEGER DEFAULT '0' NOT NULL, 
	output INTEGER DEFAULT '0' NOT NULL, 
	reasoning INTEGER DEFAULT '0' NOT NULL, 
	calls INTEGER DEFAULT '0' NOT NULL, 
	attempts INTEGER DEFAULT '0' NOT NULL, 
	seconds FLOAT DEFAULT '0' NOT NULL, 
	cost_usd FLOAT DEFAULT '0' NOT NULL, 
	throttled_by VARCHAR(200), 
	created DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "batches" VALUES('kept-batch','{"batch_id":"kept-batch","total":5,"name":null,"at_once":50,"budget":null,"max_errors":null,"max_error_rate":0.5,"pass_rate":0.5,"retries":7,"cache":true,"again":null,"priority":{"level":4,"tenant":null,"weight":1.0}}','finished',NULL,5,5,3,1,1,0,0,0,0,0,0,0,0,0,0,0,14,15,1.00000000000000019428e-02,0.0,NULL,'2026-11-26 14:49:53.118621');
CREATE TABLE call_paces (
	model VARCHAR(700) NOT NULL, 
	turns BIGINT DEFAULT '0' NOT NULL, 
	pace TEXT NOT NULL, 
	PRIMARY KEY (model)
);
CREATE TABLE case_units (
	batch_id VARCHAR(200) NOT NULL, 
	position INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	unit INTEGER NOT NULL, 
	held TEXT NOT NULL, 
	PRIMARY KEY (batch_id, position, attempt, unit)
);
INSERT INTO "case_units" VALUES('kept-batch',0,0,0,'{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c1","reason":"looked at c1","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:judge","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.0,"cost_usd":0.0},"group":0}');
INSERT INTO "case_units" VALUES('kept-batch',0,0,1,'{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.0,"cost_usd":0.0},"group":1}');
INSERT INTO "case_units" VALUES('kept-batch',0,0,3,'{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.0,"cost_usd":0.0},"group":1}');
INSERT INTO "case_units" VALUES('kept-batch',2,0,3,'{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.001,"cost_usd":0.0},"group":1}');
INSERT INTO "case_units" VALUES('kept-batch',0,0,2,'{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.001,"cost_usd":0.0},"group":1}');
INSERT INTO "case_units" VALUES('kept-batch',1,0,0,'{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c1","reason":"looked at c1","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:judge","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.0,"cost_usd":0.0},"group":0}');
INSERT INTO "case_units" VALUES('kept-batch',1,0,1,'{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.0,"cost_usd":0.0},"group":1}');
INSERT INTO "case_units" VALUES('kept-batch',1,0,2,'{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.0,"cost_usd":0.0},"group":1}');
INSERT INTO "case_units" VALUES('kept-batch',1,0,3,'{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.0,"cost_usd":0.0},"group":1}');
INSERT INTO "case_units" VALUES('kept-batch',2,0,2,'{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.007,"cost_usd":0.0},"group":1}');
INSERT INTO "case_units" VALUES('kept-batch',2,0,0,'{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c1","reason":"looked at c1","passed":false,"gap":"it is not"}],"explanation":"so it is","result":"needs_revision"},"judge":"scripted:judge","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.0,"cost_usd":0.0},"group":0}');
INSERT INTO "case_units" VALUES('kept-batch',2,0,1,'{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.0,"cost_usd":0.0},"group":1}');
CREATE TABLE cases (
	batch_id VARCHAR(200) NOT NULL, 
	position INTEGER NOT NULL, 
	case_id VARCHAR(200) NOT NULL, 
	spec TEXT NOT NULL, 
	"plan" VARCHAR(200) NOT NULL, 
	status VARCHAR(20) NOT NULL, 
	attempt INTEGER DEFAULT '0' NOT NULL, 
	fresh INTEGER DEFAULT '0' NOT NULL, 
	reused INTEGER DEFAULT '0' NOT NULL, 
	draft TEXT, 
	spent TEXT, 
	settled INTEGER, 
	result TEXT, 
	PRIMARY KEY (batch_id, position), 
	UNIQUE (batch_id, case_id)
);
INSERT INTO "cases" VALUES('kept-batch',0,'c0','{"id":"c0","output":"the output of c0.","rubric":{"criteria":[{"id":"c1","description":"it is good","required":true},{"id":"c2","description":"it is short","required":true,"grader":{"id":"scripted:other","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"votes":3}]},"grader":{"model":{"id":"scripted:judge","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"system_prompt":null,"tools":[]}}','{"kind":"calls","drafted":false,"units":4}','passed',0,0,0,NULL,NULL,1,'{"index":0,"id":"c0","status":"passed","score":1.0,"output":"the output of c0.","explanation":"2 of 2 criteria pass.","criteria":[{"id":"c1","name":"it is good","passed":true,"reason":"looked at c1","by":"model"},{"id":"c2","name":"it is short","passed":true,"reason":"looked at c2","by":"model","votes":[{"grader":"scripted:other","passed":true},{"grader":"scripted:other","passed":true},{"grader":"scripted:other","passed":true}]}],"decided_by":[],"error":null,"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":4,"attempts":4,"seconds":0.001,"cost_usd":0.0},"cached":false,"grader":"scripted:judge","attempt":0,"finished":"2026-11-26T14:49:53.206+00:00"}');
INSERT INTO "cases" VALUES('kept-batch',1,'c1','{"id":"c1","output":"the output of c1.","rubric":{"criteria":[{"id":"c1","description":"it is good","required":true},{"id":"c2","description":"it is short","required":true,"grader":{"id":"scripted:other","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"votes":3}]},"grader":{"model":{"id":"scripted:judge","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"system_prompt":null,"tools":[]}}','{"kind":"calls","drafted":false,"units":4}','passed',0,0,0,NULL,NULL,2,'{"index":1,"id":"c1","status":"passed","score":1.0,"output":"the output of c1.","explanation":"2 of 2 criteria pass.","criteria":[{"id":"c1","name":"it is good","passed":true,"reason":"looked at c1","by":"model"},{"id":"c2","name":"it is short","passed":true,"reason":"looked at c2","by":"model","votes":[{"grader":"scripted:other","passed":true},{"grader":"scripted:other","passed":true},{"grader":"scripted:other","passed":true}]}],"decided_by":[],"error":null,"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":4,"attempts":4,"seconds":0.0,"cost_usd":0.0},"cached":false,"grader":"scripted:judge","attempt":0,"finished":"2026-11-26T14:49:53.258+00:00"}');
INSERT INTO "cases" VALUES('kept-batch',2,'c2','{"id":"c2","output":"the output of c2.","rubric":{"criteria":[{"id":"c1","description":"it is good","required":true},{"id":"c2","description":"it is short","required":true,"grader":{"id":"scripted:other","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"votes":3}]},"grader":{"model":{"id":"scripted:judge","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"system_prompt":null,"tools":[]}}','{"kind":"calls","drafted":false,"units":4}','failed',0,0,0,NULL,NULL,3,'{"index":2,"id":"c2","status":"failed","score":0.5,"output":"the output of c2.","explanation":"1 of 2 criteria pass. Not passed: c1.","criteria":[{"id":"c1","name":"it is good","passed":false,"reason":"looked at c1","gap":"it is not","by":"model"},{"id":"c2","name":"it is short","passed":true,"reason":"looked at c2","by":"model","votes":[{"grader":"scripted:other","passed":true},{"grader":"scripted:other","passed":true},{"grader":"scripted:other","passed":true}]}],"decided_by":["c1"],"worst_criterion":"c1","error":null,"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":4,"attempts":4,"seconds":0.008,"cost_usd":0.0},"cached":false,"grader":"scripted:judge","attempt":0,"finished":"2026-11-26T14:49:53.457+00:00"}');
INSERT INTO "cases" VALUES('kept-batch',3,'c3','{"id":"c3","output":"the output of c3.","rubric":{"criteria":[{"id":"c1","description":"it is good","required":true}]},"grader":{"model":{"id":"scripted:judge","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"system_prompt":null,"tools":[]}}','{"kind":"calls","drafted":false,"units":1}','error',0,0,0,NULL,NULL,4,'{"index":3,"id":"c3","status":"error","score":null,"output":"the output of c3.","explanation":"auth: scripted:judge: as it was told to","criteria":[],"decided_by":[],"error":"auth: scripted:judge: as it was told to","usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":0,"attempts":1,"seconds":0.001,"cost_usd":null},"cached":false,"grader":null,"attempt":0,"finished":"2026-11-26T14:49:53.602+00:00"}');
INSERT INTO "cases" VALUES('kept-batch',4,'d','{"id":"d","messages":[{"role":"user","content":"Write d."}],"output":null,"generator":{"model":{"id":"scripted:writer","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"system_prompt":null,"tools":[],"show_rubric":false},"rubric":{"criteria":[{"id":"c1","description":"it is good","required":true}]},"grader":{"model":{"id":"scripted:judge","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"system_prompt":null,"tools":[]}}','{"kind":"calls","drafted":true,"units":1}','passed',0,0,0,'"A draft."','{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.0,"cost_usd":0.0}',5,'{"index":4,"id":"d","status":"passed","score":1.0,"output":"A draft.","explanation":"so it is","criteria":[{"id":"c1","name":"it is good","passed":true,"reason":"looked at c1","by":"model"}],"decided_by":[],"error":null,"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":2,"attempts":2,"seconds":0.0,"cost_usd":0.0},"cached":false,"grader":"scripted:judge","attempt":0,"finished":"2026-11-26T14:49:53.607+00:00"}');
CREATE TABLE charges (
	call VARCHAR(200) NOT NULL, 
	attempt INTEGER NOT NULL, 
	batch_id VARCHAR(200) NOT NULL, 
	counted INTEGER NOT NULL, 
	PRIMARY KEY (call, attempt)
);
CREATE TABLE judgements (
	id VARCHAR(100) NOT NULL, 
	judge_sha256 VARCHAR(64) NOT NULL, 
	agent_run_id VARCHAR(200) NOT NULL, 
	repeat INTEGER NOT NULL, 
	result_type VARCHAR(20) NOT NULL, 
	result TEXT NOT NULL, 
	created DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "judgements" VALUES('judging-kept','ce310cc5366e070756dea08e4051a112e3116c4e2e1ce7cdd93496c8753294dc','paris',0,'DIRECT_RESULT','{"id":"judging-kept","agent_run_id":"paris","rubric_id":"rubric-ce310cc5366e","rubric_version":1,"output":{"label":"match","explanation":"so"},"result_type":"DIRECT_RESULT","result_metadata":{},"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":0,"attempts":0,"seconds":0.0,"cost_usd":null},"model":null,"attempts":0,"prompt_sha256":null,"judge_sha256":"ce310cc5366e070756dea08e4051a112e3116c4e2e1ce7cdd93496c8753294dc","run_sha256":"fa68087ce6749e2ae3840bf5c8fbcd4337fd038e73abedfab620a756a54841d5"}','2026-11-26 14:49:53');
CREATE TABLE monitor_alerts (
	monitor VARCHAR(64) NOT NULL, 
	number INTEGER NOT NULL, 
	kind VARCHAR(100) NOT NULL, 
	alert TEXT NOT NULL, 
	cleared INTEGER, 
	created DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL, 
	PRIMARY KEY (monitor, number, kind)
);
CREATE TABLE monitor_anchors (
	monitor VARCHAR(64) NOT NULL, 
	run_sha256 VARCHAR(64) NOT NULL, 
	run_id VARCHAR(200) NOT NULL, 
	label VARCHAR(20) NOT NULL, 
	spec TEXT NOT NULL, 
	first VARCHAR(20), 
	verdict VARCHAR(20), 
	judged INTEGER, 
	tick INTEGER DEFAULT '0' NOT NULL, 
	created DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL, 
	PRIMARY KEY (monitor, run_sha256)
);
CREATE TABLE monitor_labels (
	monitor VARCHAR(64) NOT NULL, 
	run_sha256 VARCHAR(64) NOT NULL, 
	created_by VARCHAR(200) NOT NULL, 
	passed INTEGER NOT NULL, 
	reason TEXT NOT NULL, 
	created DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL, 
	PRIMARY KEY (monitor, run_sha256, created_by)
);
CREATE TABLE monitor_runs (
	monitor VARCHAR(64) NOT NULL, 
	run_sha256 VARCHAR(64) NOT NULL, 
	run_id VARCHAR(200) NOT NULL, 
	number INTEGER NOT NULL, 
	why VARCHAR(20) NOT NULL, 
	stratum VARCHAR(200), 
	case_id VARCHAR(200), 
	verdict VARCHAR(20), 
	judged INTEGER, 
	waiting TEXT, 
	shadow_case VARCHAR(200), 
	shadow_verdict VARCHAR(20), 
	created DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL, 
	PRIMARY KEY (monitor, run_sha256)
);
CREATE TABLE monitor_ticks (
	monitor VARCHAR(64) NOT NULL, 
	number INTEGER NOT NULL, 
	tick VARCHAR(200) NOT NULL, 
	batch_id VARCHAR(200), 
	request TEXT, 
	report TEXT NOT NULL, 
	settled INTEGER DEFAULT '0' NOT NULL, 
	created DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL, 
	PRIMARY KEY (monitor, number)
);
CREATE TABLE monitors (
	name VARCHAR(64) NOT NULL, 
	definition TEXT NOT NULL, 
	state TEXT NOT NULL, 
	cursor TEXT, 
	created DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL, 
	PRIMARY KEY (name)
);
CREATE TABLE received_runs (
	number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	trace_id VARCHAR(32) NOT NULL, 
	run TEXT, 
	problem TEXT, 
	created DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL, 
	UNIQUE (trace_id)
);
CREATE TABLE received_spans (
	trace_id VARCHAR(32) NOT NULL, 
	span_id VARCHAR(64) NOT NULL, 
	ended BIGINT NOT NULL, 
	span TEXT NOT NULL, 
	created DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL, 
	PRIMARY KEY (trace_id, span_id)
);
CREATE TABLE received_traces (
	trace_id VARCHAR(32) NOT NULL, 
	heard BIGINT NOT NULL, 
	settled BIGINT, 
	closed INTEGER DEFAULT '0' NOT NULL, 
	spans INTEGER DEFAULT '0' NOT NULL, 
	bytes INTEGER DEFAULT '0' NOT NULL, 
	created DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL, 
	PRIMARY KEY (trace_id)
);
CREATE TABLE rubric_versions (
	collection VARCHAR(200) NOT NULL, 
	rubric_id VARCHAR(200) NOT NULL, 
	version INTEGER NOT NULL, 
	sha256 VARCHAR(64) NOT NULL, 
	judge TEXT NOT NULL, 
	created DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL, 
	PRIMARY KEY (collection, rubric_id, version), 
	FOREIGN KEY(collection, rubric_id) REFERENCES rubrics (collection, rubric_id)
);
INSERT INTO "rubric_versions" VALUES('reports','rubric-ce310cc5366e',1,'ce310cc5366e070756dea08e4051a112e3116c4e2e1ce7cdd93496c8753294dc','{"id":"rubric-ce310cc5366e","version":1,"rubric_text":"The agent says that the capital of France is Paris.","output_schema":{"type":"object","properties":{"label":{"type":"string","enum":["match","no match"]},"explanation":{"type":"string","citations":true}},"required":["label","explanation"]},"judge_model":{"id":"scripted:judge","config":{}},"output_parsing_mode":"XML_KEY","response_xml_key":"response","output_format":"json","n_rollouts_per_input":1,"judge_variant":"majority","rollout_type":"single_turn"}','2026-11-26 14:49:53');
CREATE TABLE rubrics (
	collection VARCHAR(200) NOT NULL, 
	rubric_id VARCHAR(200) NOT NULL, 
	latest INTEGER NOT NULL, 
	created DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL, 
	PRIMARY KEY (collection, rubric_id)
);
INSERT INTO "rubrics" VALUES('reports','rubric-ce310cc5366e',1,'2026-11-26 14:49:53');
CREATE TABLE store_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT store_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "store_version" VALUES('0001');
CREATE TABLE tenant_days (
	tenant VARCHAR(64) NOT NULL, 
	day VARCHAR(10) NOT NULL, 
	tokens BIGINT DEFAULT '0' NOT NULL, 
	cost_usd FLOAT DEFAULT '0' NOT NULL, 
	calls INTEGER DEFAULT '0' NOT NULL, 
	unreported INTEGER DEFAULT '0' NOT NULL, 
	created DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL, 
	PRIMARY KEY (tenant, day)
);
CREATE TABLE verdicts (
	"key" VARCHAR(64) NOT NULL, 
	verdict TEXT NOT NULL, 
	batch_id VARCHAR(200), 
	created DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "verdicts" VALUES('15a50c9c4c0d1ba06b392a5f61f18fdd046de3297429e3abf70fa13a3850ccf1','{"criteria":[{"id":"c1","reason":"looked at c1","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}','kept-batch','2026-11-26 14:49:53');
INSERT INTO "verdicts" VALUES('ada09d5032a0a395028bceb5154d045ee933f89d215b2b65471a7ca4eff8e68f','{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}','kept-batch','2026-11-26 14:49:53');
INSERT INTO "verdicts" VALUES('b787baeb0c2f6e699b67dfc5bb370af5cfd97347cc6029e55e787ab4551d5ac4','{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}','kept-batch','2026-11-26 14:49:53');
INSERT INTO "verdicts" VALUES('e5b1bdcd0665a23d451f693ea5f354849a8be3e55558a379d7ab618f68d33cd4','{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}','kept-batch','2026-11-26 14:49:53');
INSERT INTO "verdicts" VALUES('3eb3a0c5c52bef67c48907ccd8be165825883a847b5d1f834450f8992d9b7a96','{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}','kept-batch','2026-11-26 14:49:53');
INSERT INTO "verdicts" VALUES('8db66992770c5cb51fd954905564b50bc5fdb523c6b4d57cf2223ae92856c81e','{"criteria":[{"id":"c1","reason":"looked at c1","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}','kept-batch','2026-11-26 14:49:53');
INSERT INTO "verdicts" VALUES('40c336308952ff36eb676d081988a71dfc9b8e91455958dbb4fbd30ce9402d92','{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}','kept-batch','2026-11-26 14:49:53');
INSERT INTO "verdicts" VALUES('8af3c5bf6b0764b5fca6cb55017978fd80c1985f499817354b05b48d0cf904fb','{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}','kept-batch','2026-11-26 14:49:53');
INSERT INTO "verdicts" VALUES('250296c51b7e048ffa115dca541a3193d00c6590982597dc7c5dee5fc35f0953','{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}','kept-batch','2026-11-26 14:49:53');
INSERT INTO "verdicts" VALUES('396f5ff747cd715a7fd6299c49a42153edfbdcde5a0dd7caa7e9a134a7d4bc91','{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}','kept-batch','2026-11-26 14:49:53');
INSERT INTO "verdicts" VALUES('d5a7d90303a67356d12e2c1ef25e1c11f2e9f23bdbc0fef431ca4f8debd90c12','{"criteria":[{"id":"c1","reason":"looked at c1","passed":false,"gap":"it is not"}],"explanation":"so it is","result":"needs_revision"}','kept-batch','2026-11-26 14:49:53');
INSERT INTO "verdicts" VALUES('c2d1b6007e88dfbbcd14a42d00d973576941d2e72e6204203ae96463ce4f3cee','{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}','kept-batch','2026-11-26 14:49:53');
INSERT INTO "verdicts" VALUES('6d481b5452e4f631bf61693ed5592dad0794727ba264d8d8a97b674478e94041','{"criteria":[{"id":"c1","reason":"looked at c1","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}','kept-batch','2026-11-26 14:49:53');
CREATE INDEX ix_judgements_judge_sha256 ON judgements (judge_sha256);
CREATE INDEX ix_judgements_agent_run_id ON judgements (agent_run_id);
CREATE INDEX cases_by_end ON cases (batch_id, settled);
CREATE INDEX ix_charges_batch_id ON charges (batch_id);
CREATE UNIQUE INDEX monitor_ticks_by_tick ON monitor_ticks (monitor, tick);
CREATE INDEX monitor_runs_by_tick ON monitor_runs (monitor, number);
CREATE INDEX monitor_runs_by_judged ON monitor_runs (monitor, judged);
CREATE INDEX received_traces_by_silence ON received_traces (settled, heard);
DELETE FROM "sqlite_sequence";
COMMIT;
