"""SimulatePrincipalPolicy of IAM, which the SDK v3 asks before it uploads and moto does not have: everything is allowed."""

from __future__ import annotations

from xml.sax.saxutils import escape

from moto.iam.responses import IamResponse

RESULT = "<member><EvalActionName>{}</EvalActionName><EvalResourceName>*</EvalResourceName><EvalDecision>allowed</EvalDecision></member>"


def allow_everything() -> None:
    """Adds the call to moto's IAM in this process."""

    def simulate(self: IamResponse) -> str:
        actions = [value[0] for name, value in self.querystring.items() if name.startswith("ActionNames.member.")]
        results = "".join(RESULT.format(escape(action)) for action in actions)
        return (
            "<SimulatePrincipalPolicyResponse xmlns='https://iam.amazonaws.com/doc/2010-05-08/'><SimulatePrincipalPolicyResult>"
            f"<IsTruncated>false</IsTruncated><EvaluationResults>{results}</EvaluationResults>"
            "</SimulatePrincipalPolicyResult></SimulatePrincipalPolicyResponse>"
        )

    IamResponse.simulate_principal_policy = simulate
