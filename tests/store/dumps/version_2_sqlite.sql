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
	reused INTEGER DEFAULT '0' NOT NULL, 
	throttled INTEGER DEFAULT '0' NOT NULL, 
	unpriced INTEGER DEFAULT '0' NOT NULL, 
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
INSERT INTO "batches" VALUES('kept-batch','{"batch_id":"kept-batch","total":5,"name":null,"at_once":50,"budget":null,"max_errors":null,"max_error_rate":0.5,"pass_rate":0.5,"retries":7,"cache":true,"again":null,"priority":{"level":4,"tenant":null,"weight":1.0}}','finished',NULL,5,5,3,1,1,0,0,0,0,0,0,0,0,14,15,2.90000000000000049404e-02,0.0,NULL,'2026-11-22 20:43:01.811884');
CREATE TABLE case_units (
	batch_id VARCHAR(200) NOT NULL, 
	position INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	unit INTEGER NOT NULL, 
	held TEXT NOT NULL, 
	PRIMARY KEY (batch_id, position, attempt, unit)
);
INSERT INTO "case_units" VALUES('kept-batch',0,0,0,'{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c1","reason":"looked at c1","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:judge","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.002,"cost_usd":0.0}}');
INSERT INTO "case_units" VALUES('kept-batch',0,0,1,'{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.007,"cost_usd":0.0}}');
INSERT INTO "case_units" VALUES('kept-batch',0,0,2,'{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.001,"cost_usd":0.0}}');
INSERT INTO "case_units" VALUES('kept-batch',1,0,0,'{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c1","reason":"looked at c1","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:judge","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.001,"cost_usd":0.0}}');
INSERT INTO "case_units" VALUES('kept-batch',0,0,3,'{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.0,"cost_usd":0.0}}');
INSERT INTO "case_units" VALUES('kept-batch',1,0,1,'{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.002,"cost_usd":0.0}}');
INSERT INTO "case_units" VALUES('kept-batch',1,0,2,'{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.001,"cost_usd":0.0}}');
INSERT INTO "case_units" VALUES('kept-batch',2,0,3,'{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.002,"cost_usd":0.0}}');
INSERT INTO "case_units" VALUES('kept-batch',1,0,3,'{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.0,"cost_usd":0.0}}');
INSERT INTO "case_units" VALUES('kept-batch',2,0,0,'{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c1","reason":"looked at c1","passed":false,"gap":"it is not"}],"explanation":"so it is","result":"needs_revision"},"judge":"scripted:judge","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.002,"cost_usd":0.0}}');
INSERT INTO "case_units" VALUES('kept-batch',2,0,1,'{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.0,"cost_usd":0.0}}');
INSERT INTO "case_units" VALUES('kept-batch',2,0,2,'{"steps":1,"repairs":0,"pending":[],"rows":[],"explanation":"","missing":[],"error":null,"verdict":{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"},"judge":"scripted:other","cached":false,"scratch":[],"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.001,"cost_usd":0.0}}');
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
INSERT INTO "cases" VALUES('kept-batch',0,'c0','{"id":"c0","output":"the output of c0.","rubric":{"criteria":[{"id":"c1","description":"it is good","required":true},{"id":"c2","description":"it is short","required":true,"grader":{"id":"scripted:other","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"votes":3}]},"grader":{"model":{"id":"scripted:judge","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"system_prompt":null,"tools":[]}}','{"kind":"calls","drafted":false,"units":4}','passed',0,0,0,NULL,NULL,1,'{"index":0,"id":"c0","status":"passed","score":1.0,"output":"the output of c0.","explanation":"2 of 2 criteria pass.","criteria":[{"id":"c1","name":"it is good","passed":true,"reason":"looked at c1","by":"model"},{"id":"c2","name":"it is short","passed":true,"reason":"looked at c2","by":"model","votes":[{"grader":"scripted:other","passed":true},{"grader":"scripted:other","passed":true},{"grader":"scripted:other","passed":true}]}],"error":null,"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":4,"attempts":4,"seconds":0.01,"cost_usd":0.0},"cached":false,"grader":"scripted:judge","attempt":0,"finished":"2026-11-22T20:43:01.988+00:00"}');
INSERT INTO "cases" VALUES('kept-batch',1,'c1','{"id":"c1","output":"the output of c1.","rubric":{"criteria":[{"id":"c1","description":"it is good","required":true},{"id":"c2","description":"it is short","required":true,"grader":{"id":"scripted:other","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"votes":3}]},"grader":{"model":{"id":"scripted:judge","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"system_prompt":null,"tools":[]}}','{"kind":"calls","drafted":false,"units":4}','passed',0,0,0,NULL,NULL,3,'{"index":1,"id":"c1","status":"passed","score":1.0,"output":"the output of c1.","explanation":"2 of 2 criteria pass.","criteria":[{"id":"c1","name":"it is good","passed":true,"reason":"looked at c1","by":"model"},{"id":"c2","name":"it is short","passed":true,"reason":"looked at c2","by":"model","votes":[{"grader":"scripted:other","passed":true},{"grader":"scripted:other","passed":true},{"grader":"scripted:other","passed":true}]}],"error":null,"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":4,"attempts":4,"seconds":0.004,"cost_usd":0.0},"cached":false,"grader":"scripted:judge","attempt":0,"finished":"2026-11-22T20:43:02.025+00:00"}');
INSERT INTO "cases" VALUES('kept-batch',2,'c2','{"id":"c2","output":"the output of c2.","rubric":{"criteria":[{"id":"c1","description":"it is good","required":true},{"id":"c2","description":"it is short","required":true,"grader":{"id":"scripted:other","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"votes":3}]},"grader":{"model":{"id":"scripted:judge","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"system_prompt":null,"tools":[]}}','{"kind":"calls","drafted":false,"units":4}','failed',0,0,0,NULL,NULL,2,'{"index":2,"id":"c2","status":"failed","score":0.5,"output":"the output of c2.","explanation":"1 of 2 criteria pass. Not passed: c1.","criteria":[{"id":"c1","name":"it is good","passed":false,"reason":"looked at c1","gap":"it is not","by":"model"},{"id":"c2","name":"it is short","passed":true,"reason":"looked at c2","by":"model","votes":[{"grader":"scripted:other","passed":true},{"grader":"scripted:other","passed":true},{"grader":"scripted:other","passed":true}]}],"error":null,"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":4,"attempts":4,"seconds":0.005,"cost_usd":0.0},"cached":false,"grader":"scripted:judge","attempt":0,"finished":"2026-11-22T20:43:02.034+00:00"}');
INSERT INTO "cases" VALUES('kept-batch',3,'c3','{"id":"c3","output":"the output of c3.","rubric":{"criteria":[{"id":"c1","description":"it is good","required":true}]},"grader":{"model":{"id":"scripted:judge","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"system_prompt":null,"tools":[]}}','{"kind":"calls","drafted":false,"units":1}','error',0,0,0,NULL,NULL,4,'{"index":3,"id":"c3","status":"error","score":null,"output":"the output of c3.","explanation":"auth: scripted:judge: as it was told to","criteria":[],"error":"auth: scripted:judge: as it was told to","usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":0,"attempts":1,"seconds":0.001,"cost_usd":null},"cached":false,"grader":null,"attempt":0,"finished":"2026-11-22T20:43:02.065+00:00"}');
INSERT INTO "cases" VALUES('kept-batch',4,'d','{"id":"d","messages":[{"role":"user","content":"Write d."}],"output":null,"generator":{"model":{"id":"scripted:writer","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"system_prompt":null,"tools":[],"show_rubric":false},"rubric":{"criteria":[{"id":"c1","description":"it is good","required":true}]},"grader":{"model":{"id":"scripted:judge","config":{"max_tokens":null,"temperature":null,"reasoning_effort":null,"thinking":null,"seed":null,"structured_output":null,"base_url":null}},"system_prompt":null,"tools":[]}}','{"kind":"calls","drafted":true,"units":1}','passed',0,0,0,'"a draft"','{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":1,"attempts":1,"seconds":0.009,"cost_usd":0.0}',5,'{"index":4,"id":"d","status":"passed","score":1.0,"output":"a draft","explanation":"so it is","criteria":[{"id":"c1","name":"it is good","passed":true,"reason":"looked at c1","by":"model"}],"error":null,"usage":{"input":0,"cached":0,"cache_written":0,"output":0,"reasoning":0,"calls":2,"attempts":2,"seconds":0.009,"cost_usd":0.0},"cached":false,"grader":"scripted:judge","attempt":0,"finished":"2026-11-22T20:43:02.105+00:00"}');
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
INSERT INTO "rubric_versions" VALUES('reports','rubric-42cd180edc70',1,'42cd180edc70e4edd085452c26210e5f95bb27d68e4ca28a90b6e332c18c0a5d','{"id":"rubric-42cd180edc70","version":1,"rubric":{"criteria":[{"id":"c1","description":"it is good","required":true}]}}','2026-11-22 20:43:02');
CREATE TABLE rubrics (
	collection VARCHAR(200) NOT NULL, 
	rubric_id VARCHAR(200) NOT NULL, 
	latest INTEGER NOT NULL, 
	created DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL, 
	PRIMARY KEY (collection, rubric_id)
);
INSERT INTO "rubrics" VALUES('reports','rubric-42cd180edc70',1,'2026-11-22 20:43:02');
CREATE TABLE schema_version (
	version INTEGER NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "schema_version" VALUES(2);
CREATE TABLE verdicts (
	"key" VARCHAR(64) NOT NULL, 
	verdict TEXT NOT NULL, 
	created DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "verdicts" VALUES('4328525e2d78c1bec4d0bb461eecc1b182ec386a403b33ee05d9116cec81d649','{"criteria":[{"id":"c1","reason":"looked at c1","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}','2026-11-22 20:43:01');
INSERT INTO "verdicts" VALUES('b0f8890ad8eff7e49198710dfa3355bae7981a01877f45afdc3b8a4a47522c89','{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}','2026-11-22 20:43:01');
INSERT INTO "verdicts" VALUES('30bba137fe3ae355b73cbd97799aecea327fb43203cd71108ad97207fddd47ba','{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}','2026-11-22 20:43:01');
INSERT INTO "verdicts" VALUES('5255276f38723135d4ee19d6da95960c2da70be78333be343a8d1fcdb2ae209c','{"criteria":[{"id":"c1","reason":"looked at c1","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}','2026-11-22 20:43:01');
INSERT INTO "verdicts" VALUES('11be8fb1438859a66b24025481e8d17eea35f244461789b6b131123a89ec6de8','{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}','2026-11-22 20:43:01');
INSERT INTO "verdicts" VALUES('f3bee91e483c0437dca4962c2ff5651f9a04d9aed76eced3311b94bfa4955b75','{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}','2026-11-22 20:43:01');
INSERT INTO "verdicts" VALUES('bf4f20bf0aeddd7be4e2095932bb5beea41012c080dfff6d083279e10ccb1fea','{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}','2026-11-22 20:43:02');
INSERT INTO "verdicts" VALUES('39dd3afc916525993e4afed802124ba4ff1633488ca0df2650563b1b552649f1','{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}','2026-11-22 20:43:02');
INSERT INTO "verdicts" VALUES('7bd6c22624af12332f5b8bd13a6a10786137fc6556245a2cb8888a39e15e0740','{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}','2026-11-22 20:43:02');
INSERT INTO "verdicts" VALUES('f64a1ad159eca30b1824ce8cca300cec6669975964af3ec4afa431b53389543c','{"criteria":[{"id":"c1","reason":"looked at c1","passed":false,"gap":"it is not"}],"explanation":"so it is","result":"needs_revision"}','2026-11-22 20:43:02');
INSERT INTO "verdicts" VALUES('291ddd3f4aa24e624a4925b2b71cb97e4c2e2bec8d836934bde09565b978625f','{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}','2026-11-22 20:43:02');
INSERT INTO "verdicts" VALUES('a7b0e55dbbc6a7921f914bf8fad2b5d4ab2ef36a3644f89e833afd1ea3313386','{"criteria":[{"id":"c2","reason":"looked at c2","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}','2026-11-22 20:43:02');
INSERT INTO "verdicts" VALUES('63817909b3f0602fdcfc6860a53e5968b75bafda7427f373f578638a3ef6976c','{"criteria":[{"id":"c1","reason":"looked at c1","passed":true,"gap":null}],"explanation":"so it is","result":"satisfied"}','2026-11-22 20:43:02');
CREATE INDEX ix_judgements_judge_sha256 ON judgements (judge_sha256);
CREATE INDEX ix_judgements_agent_run_id ON judgements (agent_run_id);
CREATE INDEX cases_by_end ON cases (batch_id, settled);
COMMIT;
