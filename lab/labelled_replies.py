"""Fifty short replies of a hotel's desk, whose labels plain facts decide: a sentence that states the fact is in the reply, or is not."""

import random
from dataclasses import dataclass

ASKED = "A guest asks a hotel: Can I bring my dog, and what do I have to know?"

FACTS: dict[str, tuple[str, str, str]] = {
    "price": ("It names a price in euros.", "A dog costs 12 euros a night.", "You pay 15 euros a night for the dog."),
    "weekday": ("It names a day of the week.", "On Tuesday the lift is out of order.", "The garden is closed on Sunday."),
    "phone": ("It gives a telephone number.", "You reach us at 030 4471 208.", "Call 040 2219 655 if you are late."),
    "name": ("It addresses the guest as Mrs Keller.", "Dear Mrs Keller,", "Good morning, Mrs Keller."),
    "thanks": ("It thanks the guest.", "Thank you for your message.", "Many thanks for writing to us."),
    "sorry": ("It apologises for something.", "We apologise for the late answer.", "We are sorry that you had to wait."),
    "time": ("It names a time of day.", "Your room is ready at 15:00.", "Breakfast ends at 10:30."),
    "mail": ("It gives an email address.", "Write to desk@hotel-linde.example.", "Our address is hello@hotel-linde.example."),
    "question": ("It asks the guest a question.", "How large is your dog?", "Do you need a bowl and a blanket?"),
    "parking": ("It says where to park a car.", "Park your car behind the house.", "There is a car park across the street."),
}
"""A criterion of each fact, and two sentences that state it; no other sentence does."""

FILLER = ("Dogs are welcome in our house.", "You may bring your dog.", "Many of our guests travel with a dog.")

COUNT = 50


@dataclass(frozen=True)
class Reply:
    """A reply, and the facts that it states."""

    text: str
    states: frozenset[str]


def replies(count: int = COUNT) -> list[Reply]:
    """Return the first replies; every fact is stated in half of all, and in about half of each few."""
    dice = random.Random(41)
    stated = {fact: {at for pair in range(0, COUNT, 2) for at in [pair + dice.randrange(2)]} for fact in FACTS}
    found = []
    for at in range(COUNT):
        facts = [fact for fact in FACTS if at in stated[fact]]
        opening = [fact for fact in ("name", "thanks") if fact in facts]
        others = [fact for fact in facts if fact not in opening]
        dice.shuffle(others)
        sentences = [FACTS[fact][1 + dice.randrange(2)] for fact in (*opening, *others)]
        sentences.insert(len(opening), FILLER[at % len(FILLER)])
        found.append(Reply(" ".join(sentences), frozenset(facts)))
    return found[:count]
