"""What moto's ECR lacks: the layers of an image, among them its configuration with the labels.

Calls of ECR come to this server (AWS_ENDPOINT_URL_ECR). GetDownloadUrlForLayer is answered here, all others go to moto.
"""

from __future__ import annotations

import hashlib
import json
import urllib.error
import urllib.request

from werkzeug.wrappers import Request, Response

TARGET = "AmazonEC2ContainerRegistry_V20150921."
LAYERS = "/__layers/"
MOTO_S = 30.0


class Registry:
    """The layers that tests have stored, and the way to moto for everything else."""

    def __init__(self, moto_url: str) -> None:
        self._moto_url = moto_url
        self._layers: dict[str, bytes] = {}

    def layer(self, request: Request) -> Response:
        """POST /__layers/ stores a layer and answers with its digest; GET /__layers/DIGEST returns it."""
        if request.method == "POST":
            data = request.get_data()
            digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
            self._layers[digest] = data
            return Response(json.dumps({"digest": digest}))
        found = self._layers.get(request.path.removeprefix(LAYERS))
        return Response("no such layer", 404) if found is None else Response(found)

    def call(self, request: Request) -> Response:
        """A call of ECR."""
        data = request.get_data()
        if request.headers["X-Amz-Target"] == f"{TARGET}GetDownloadUrlForLayer":
            digest = json.loads(data)["layerDigest"]
            if digest in self._layers:
                url = f"{request.host_url.rstrip('/')}{LAYERS}{digest}"
                return Response(json.dumps({"downloadUrl": url, "layerDigest": digest}))
            error = {"__type": "LayersNotFoundException", "message": f"no layer {digest}"}
            return Response(json.dumps(error), 400)
        names = ("X-Amz-Target", "Content-Type", "Authorization", "X-Amz-Date")
        headers = {name: request.headers[name] for name in names if name in request.headers}
        forwarded = urllib.request.Request(self._moto_url, data, headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(forwarded, timeout=MOTO_S) as answer:
                return Response(answer.read(), answer.status)
        except urllib.error.HTTPError as error:
            return Response(error.read(), error.code)
