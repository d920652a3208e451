"""The activities of batches and judgements: what they ask of models, and what they write down."""
