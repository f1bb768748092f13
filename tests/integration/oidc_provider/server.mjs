// An OpenID Connect issuer for tests: oidc-provider with client credentials and JWT access tokens; people sign in by its
// own pages, under any name. Usage: node server.mjs PORT KEY_ID [REDIRECT_URI]; it prints one line when it serves.
import { generateKeyPairSync } from 'node:crypto'
import Provider from 'oidc-provider'

const [port, kid, redirectUri] = process.argv.slice(2)
const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 })
const client = (id) => ({
  client_id: id,
  client_secret: `secret of ${id}`,
  grant_types: ['client_credentials'],
  redirect_uris: [],
  response_types: [],
  token_endpoint_auth_method: 'client_secret_post'
})
const people = {
  ...client('people'),
  grant_types: ['authorization_code'],
  redirect_uris: [redirectUri],
  response_types: ['code']
}
const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [client('admin'), client('guest'), ...(redirectUri ? [people] : [])],
  jwks: { keys: [{ ...privateKey.export({ format: 'jwk' }), kid, use: 'sig', alg: 'RS256' }] },
  features: {
    devInteractions: { enabled: Boolean(redirectUri) },
    clientCredentials: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => 'urn:pulsar',
      useGrantedResource: () => true,
      getResourceServerInfo: () => ({
        scope: '', audience: 'pulsar', accessTokenFormat: 'jwt', accessTokenTTL: 120, jwt: { sign: { alg: 'RS256' } }
      })
    }
  },
  // Brokers demand this claim.
  extraTokenClaims: () => ({ nbf: Math.floor(Date.now() / 1000) })
})
provider.listen(Number(port), '127.0.0.1', () => console.log('serving'))
