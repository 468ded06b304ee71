"""From the words of `algorun submit` to a job, in four stages with one room each: read, look up, assemble, place.

`submit` takes one task through them; `chain` takes several. `history` reads what earlier submits have left.
"""
