import os

import torch
from transformers import pipeline

classifier = pipeline("text-classification", model=os.environ["SENTIMENT_MODEL"], device=-1)
calls = 0


def reward_func(queries, prompts, labels):
    global calls
    calls += 1
    responses = [query[len(prompt) :] for query, prompt in zip(queries, prompts)]
    outputs = classifier(responses, top_k=None)
    scores = [next(o["score"] for o in output if o["label"] == "LABEL_1") for output in outputs]
    return {
        "rewards": torch.tensor(scores),
        "scores": torch.tensor(scores),
        "extra_logs": {"calls": calls, "classifier": id(classifier)},
    }
