import json

bonus = 0.125


def is_correct(query, label):
    return float(query.endswith(str(json.loads(label)["answer"])))
